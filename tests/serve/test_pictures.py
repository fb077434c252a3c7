"""Images to try."""

import dataclasses
import io
from types import SimpleNamespace

import numpy as np
from PIL import Image

from rac_jax import config as configs
from rac_jax import data
from rac_jax.data import record
from rac_jax.runtime import files
from rac_jax.serve import pictures


class WithoutMemory:
    """A model whose voices use no memory, and whose data are not here."""

    def __init__(self, workdir):
        self.workdir, self.config = workdir, configs.default()
        self.live = SimpleNamespace(answering=SimpleNamespace(run=SimpleNamespace(retriever=None)))

    @property
    def memory(self):
        raise ValueError("the voices use no memory")


def test_there_are_none_without_memory_and_data(tmp_path):
    examples = pictures.Examples(WithoutMemory(tmp_path))
    assert examples.some() == {"split": "", "images": 0, "some": []}
    assert examples.image(0) is None and examples.image(0, small=True) is None


def test_they_are_of_the_test_split_where_the_data_are(tmp_path):
    model = WithoutMemory(tmp_path)
    model.config.data.name = "digits"
    dataset = data.load(model.config)
    files.write_json(tmp_path / record.FILE, dataclasses.asdict(record.describe(dataset, "")))
    examples, split = pictures.Examples(model), dataset.split("test")
    found = examples.some()
    assert (found["split"], found["images"], len(found["some"])) == ("test", len(split), 24)
    numbers = [one["number"] for one in found["some"]]
    assert [one["label"] for one in found["some"]] == [dataset.class_names[split.labels[n]] for n in numbers]
    assert set(split.labels[numbers].tolist()) == set(range(10))  # of every class
    shown = np.asarray(Image.open(io.BytesIO(examples.image(numbers[3]))).convert("RGB"))
    np.testing.assert_array_equal(shown, split.images[numbers[3]])
    assert Image.open(io.BytesIO(examples.image(numbers[3], small=True))).format == "JPEG"
    assert examples.image(len(split)) is None
