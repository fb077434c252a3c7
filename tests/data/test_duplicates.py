"""Exact copies of an image in two classes or splits are counted."""

from pathlib import Path

import numpy as np
import pytest

from rac_jax.data import content, duplicates
from rac_jax.data.dataset import Dataset
from rac_jax.data.files import file_split


def dataset(root: Path, contents: dict[str, bytes]) -> Dataset:
    """Files train/cat/1.jpg: split, class, name."""
    splits = {}
    for name in ("train", "test"):
        paths = [path for path in contents if path.startswith(name)]
        splits[name] = file_split(name, root, paths, [("cat", "dog").index(path.split("/")[1]) for path in paths])
    for path, written in contents.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(written)
    return Dataset("pets", ("cat", "dog"), ("cat", "dog"), splits)


def test_copies_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    random = np.random.default_rng(0)
    a, b, c = (random.bytes(9_000) for _ in range(3))
    middle = bytearray(c)
    middle[4_500] ^= 1  # the same sample, but not the same file
    found = dataset(
        tmp_path,
        {
            "train/cat/1.jpg": a, "train/dog/2.jpg": a,  # two classes
            "train/cat/3.jpg": b, "test/cat/4.jpg": b, "train/cat/5.jpg": b,  # two splits
            "train/cat/6.jpg": c, "test/dog/7.jpg": bytes(middle), "train/cat/8.jpg": c,  # a copy within a class
            "train/cat/9.jpg": b"", "test/dog/9.jpg": b"",  # empty files are bad images, no copies
        },
    )  # fmt: skip
    duplicates.warn(found)
    assert caplog.messages == [
        "pets: 1 images occur in more than one class (train/cat/1.jpg is the same file as train/dog/2.jpg); "
        "1 images occur in more than one split (train/cat/3.jpg is the same file as test/cat/4.jpg)"
    ]


def test_the_answer_is_cached(tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(content, "SETTLED", -1.0)
    found = dataset(tmp_path, {"train/cat/1.jpg": b"x", "train/dog/2.jpg": b"x", "test/dog/3.jpg": b"y"})
    duplicates.warn(found)
    monkeypatch.setattr(duplicates, "identical", lambda _: pytest.fail("computed again"))
    duplicates.warn(found)
    assert len(caplog.messages) == 2 and caplog.messages[0] == caplog.messages[1]
    monkeypatch.undo()
    (tmp_path / "train/dog/2.jpg").write_bytes(b"z")
    caplog.clear()
    duplicates.warn(found)
    assert not caplog.messages
