"""Images to try."""

import dataclasses
import io
from types import SimpleNamespace

import numpy as np
from PIL import Image

from rac_jax import config as configs
from rac_jax import data
from rac_jax.data import record, usable
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


def test_none_is_decoded_ahead_and_a_damaged_one_is_not_there(tmp_path, monkeypatch):
    for place in ("train/a", "train/b", "test/a", "test/b"):
        (tmp_path / "photos" / place).mkdir(parents=True)
        Image.new("RGB", (9, 9), "red").save(tmp_path / "photos" / place / "a.png")
    (tmp_path / "photos" / "test" / "b" / "a.png").write_bytes(b"no image")
    model = WithoutMemory(tmp_path / "run")
    model.config.data.update(name="folder", root=str(tmp_path / "photos"), image_size=32)
    recorded = record.describe(data.load(model.config), model.config.data.root)
    files.write_json(tmp_path / "run" / record.FILE, dataclasses.asdict(recorded))
    model.config.data.on_bad_image = "skip"
    looked = []
    monkeypatch.setattr(usable, "usable_part", lambda split: looked.append(split.name) or split)
    examples = pictures.Examples(model)
    assert examples.some()["images"] == 2 and not looked
    assert examples.image(0, small=True).startswith(b"\xff\xd8") and examples.image(0).startswith(b"\x89PNG")
    assert examples.image(1, small=True) is None and examples.image(1) is None
    (tmp_path / "photos" / "test" / "a" / "a.png").unlink()
    assert examples.image(0) is None
