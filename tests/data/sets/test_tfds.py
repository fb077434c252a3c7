"""TFDS's data sets through its own mock; no TensorFlow."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image

from rac_jax import config, data
from rac_jax.data.sets import tfds as tfds_set

COUNT = {"train": 400, "test": 30}


def fake_source(_: Any, split: str, decoders: Any = None, **__: Any) -> list[dict[str, Any]]:
    """What as_data_source gives when the image is not to be decoded: its bytes."""
    assert isinstance(decoders["image"], tfds.decode.SkipDecoding)
    examples = []
    for number in range(COUNT[split]):
        buffer = io.BytesIO()
        Image.new("RGB", (32, 32), (number % 256, 0, 0)).save(buffer, "PNG")
        examples.append({"image": buffer.getvalue(), "label": np.int64(number % 100)})
    return examples


@pytest.fixture
def mocked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "cifar100" / "3.0.2").mkdir(parents=True)
    monkeypatch.setattr(tfds_set, "known_splits", lambda _: ["train", "test"])
    for cached in (tfds_set.builder, tfds_set.source):
        cached.cache_clear()
    with tfds.testing.mock_data(
        as_data_source_fn=fake_source, data_dir=str(tmp_path), policy=tfds.testing.MockPolicy.USE_CODE
    ):
        yield tmp_path
    for cached in (tfds_set.builder, tfds_set.source):
        cached.cache_clear()


def create(name: str, root: Path, imbalance: float = 0.0):
    c = config.default()
    c.data.update(name=name, root=str(root), imbalance=imbalance)
    return data.load(c)


def test_any_tfds_data_set(mocked: Path):
    found = create("tfds:cifar100", mocked)
    assert {name: len(split) for name, split in found.splits.items()} == COUNT
    assert found.class_texts[1] == "1"  # the names come with the download, which the mock leaves out
    assert found.split("train").labels[:3].tolist() == [0, 1, 2]
    assert found.split("train").images[7][0, 0].tolist() == [7, 0, 0]
    assert found.split("train").images.references()[5] == "train/5"


def test_made_long_tailed(mocked: Path):
    for name in ("tfds:cifar100", "cifar100_lt"):
        found = create(name, mocked, imbalance=4.0)
        assert found.class_counts[[0, 99]].tolist() == [4, 1]
        train = found.split("train")
        position = int(train.images.references()[20].removeprefix("train/"))
        assert train.images[20][0, 0, 0] == position % 256
        assert train.labels[20] == position % 100


def test_not_prepared_says_how(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match=r"tfds:cifar10 is not prepared[\s\S]*tfds build cifar10 --file_format"):
        create("tfds:cifar10", tmp_path)
