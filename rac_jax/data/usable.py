"""Leave out the images that cannot be decoded, before anything depends on positions."""

import dataclasses
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from absl import logging
from tqdm import tqdm

from rac_jax.data.dataset import Dataset, Split
from rac_jax.data.decode import BadImage
from rac_jax.data.files import check_every_class

NAMED = 20  # bad images that are logged by name


def without_bad(dataset: Dataset) -> Dataset:
    """The data set without the images that cannot be decoded. Decodes every image once."""
    splits = {name: usable_part(split) for name, split in dataset.splits.items()}
    check_every_class(splits["train"], dataset.class_names, f"{dataset.name}, without its bad images")
    return dataclasses.replace(dataset, splits=splits)


def usable_part(split: Split) -> Split:
    """The split without the images that cannot be decoded; the first few are named in the log."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        problems = list(
            tqdm(
                pool.map(_problem_of(split), range(len(split))),
                total=len(split),
                desc=f"look for bad images: {split.name}",
                unit="img",
            )
        )
    bad = [problem for problem in problems if problem]
    for problem in bad[:NAMED]:
        logging.warning("left out: %s", problem)
    if bad:
        logging.warning("%s: left out %d of %d images, which cannot be decoded", split.name, len(bad), len(split))
    return split.select(np.flatnonzero([not problem for problem in problems]))


def _problem_of(split: Split) -> Callable[[int], str]:
    def problem(position: int) -> str:
        try:
            split.images[position]
        except BadImage as error:
            return str(error)
        return ""

    return problem
