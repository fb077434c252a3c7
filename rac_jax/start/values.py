"""The first values of a run's parameters: those of weights files, and heads that are read from the memory."""

import functools
from typing import Any

import jax
import numpy as np
from absl import logging
from flax import nnx

from rac_jax import config as configs
from rac_jax import sharding, weights
from rac_jax.models.voices import Knowledge
from rac_jax.retrieval import prompts
from rac_jax.run import Run
from rac_jax.start import text_head


def given(run: Run) -> dict[str, np.ndarray]:
    """The arrays of the weights files of B and T, and a base head made of class means or of texts, by path."""
    config = run.config
    arrays = {
        f"{role}.{path}": array
        for role in configs.roles(config)
        if role != "encoder"
        for path, array in weights.from_config(config, role, getattr(run.model, role)).items()
    }
    start = config.model.head_start if "base" in configs.voices(config) else "random"
    if start == "means" and run.retriever is not None:
        arrays["base_head.kernel"] = _class_means(run, run.retriever.knowledge).T
    if start == "text":
        arrays["base_head.kernel"] = prompts.head(config, run.class_texts[: run.classes.trained])
    return arrays


def of_text_head(run: Run, params: Any, stats: Any) -> dict[str, np.ndarray]:
    """The text head with config.model.text_start=memory, for a T with these parameters; {} if it starts at random."""
    if run.config.model.text_start == "random" or run.retriever is None:
        return {}
    graph = nnx.graphdef(run.model)

    @functools.partial(jax.jit, out_shardings=sharding.replicated(run.mesh))
    def read(params: Any, stats: Any, tokens: jax.Array) -> jax.Array:
        return nnx.merge(graph, params, stats).text(tokens)

    return text_head.head(
        run.config,
        run.retriever,
        run.mesh,
        run.dataset,
        lambda tokens: read(params, stats, sharding.put_batch(run.mesh, {"tokens": tokens})["tokens"]),
    )


def _class_means(run: Run, known: Knowledge) -> np.ndarray:
    """The mean keys of the trained classes, [L, D]; random directions for those without rows in the memory."""
    counts, sums = (np.asarray(array)[: run.classes.trained] for array in (known.counts, known.sums))
    means, absent = sums / np.maximum(counts, 1)[:, None], counts <= 0
    if absent.any():  # a cosine with zeros has no useful gradient
        logging.warning(
            "config.model.head_start=means: %d of %d classes have no rows in the memory and start at random, as %s",
            absent.sum(), len(counts), run.classes.names[int(absent.argmax())],
        )  # fmt: skip
        drawn = np.random.default_rng(run.config.seed).normal(size=means[absent].shape)
        means[absent] = drawn * means.shape[1] ** -0.5
    return means
