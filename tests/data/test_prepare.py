"""Checking and packing, being interrupted, and reading what was packed."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rac_jax import config, data
from rac_jax.data import prepare, shards


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """25 training and 6 test images in three classes, packed 10 to a file."""
    monkeypatch.setattr(shards, "SHARD", 10)
    random = np.random.default_rng(0)
    for split, count in (("train", 25), ("test", 6)):
        for number in range(count):
            path = tmp_path / "images" / split / f"class_{number % 3}" / f"{number:02d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(random.integers(0, 256, (5, 7, 3), np.uint8)).save(path)
    return tmp_path


class Here:
    """Runs the jobs in this process: quick, and it sees the small shards."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def __enter__(self) -> "Here":
        return self

    def __exit__(self, *_: object) -> None: ...

    def submit(self, function, job):
        from concurrent.futures import Future

        future: Future = Future()
        future.set_result(function(job))
        return future


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "ProcessPoolExecutor", Here)


def create(name: str, root: Path):
    c = config.default()
    c.data.update(name=name, root=str(root))
    return data.load(c)


def test_packed_is_the_same_data_set(root: Path, capsys: pytest.CaptureFixture[str]):
    assert prepare.main(["folder", f"--root={root}/images", f"--out={root}/packed"]) == 0
    printed = capsys.readouterr().out
    assert "train          25 images" in printed
    assert "every image is there and can be decoded" in printed
    files, packed = create("folder", root / "images"), create("folder", root / "packed")
    assert packed.class_texts == files.class_texts
    for name in ("train", "test"):
        a, b = files.split(name), packed.split(name)
        np.testing.assert_array_equal(a.labels, b.labels)
        assert a.images.references() == b.images.references()
        assert files.fingerprint(name) == packed.fingerprint(name)
        for position in range(len(a)):
            np.testing.assert_array_equal(a.images[position], b.images[position])
    with pytest.raises(ValueError, match=r"was prepared from 'folder': set --config.data.name=folder"):
        create("places_lt", root / "packed")


def test_it_is_also_a_tfds_data_set(root: Path):
    import tensorflow_datasets as tfds

    prepare.main(["folder", f"--root={root}/images", f"--out={root}/packed"])
    builder = tfds.builder_from_directory(str(root / "packed"))
    assert builder.info.splits["train"].num_examples == 25
    assert builder.info.features["label"].names == ["class_0", "class_1", "class_2"]
    example = builder.as_data_source("test", decoders={"image": tfds.decode.SkipDecoding()})[5]
    assert example["label"] == 2
    assert example["image"] == (root / "images/test/class_2/05.png").read_bytes()


def test_bad_images_are_named_and_left_out_on_request(root: Path, capsys: pytest.CaptureFixture[str]):
    bad = root / "images/train/class_1/04.png"
    bad.write_bytes(bad.read_bytes()[:40])
    arguments = ["folder", f"--root={root}/images", f"--out={root}/packed"]
    assert prepare.main(arguments) == 1
    assert "1 images are missing or bad" in capsys.readouterr().out
    assert str(bad) in (root / "packed/bad_images.txt").read_text()
    assert not (root / "packed/rac_jax.json").exists()
    assert prepare.main([*arguments, "--skip-bad"]) == 0
    packed = create("folder", root / "packed").split("train")
    assert len(packed) == 24
    assert "train/class_1/04.png" not in packed.images.references()
    whole = create("folder", root / "images").split("train")
    for position, path in enumerate(packed.images.references()):
        original = whole.images[list(whole.images.references()).index(path)]
        np.testing.assert_array_equal(packed.images[position], original)


def test_an_interrupted_run_goes_on(root: Path, monkeypatch: pytest.MonkeyPatch):
    arguments = ["folder", f"--root={root}/images", f"--out={root}/packed"]
    ran: list[tuple[str, int]] = []
    original = shards.run

    def run(job: shards.Job) -> list[str]:
        if len(ran) == 2:
            raise KeyboardInterrupt
        ran.append((job.split.name, job.number))
        return original(job)

    monkeypatch.setattr(shards, "run", run)
    with pytest.raises(KeyboardInterrupt):
        prepare.main(arguments)
    first = list(ran)
    monkeypatch.setattr(shards, "run", lambda job: (ran.append((job.split.name, job.number)), original(job))[1])
    assert prepare.main(arguments) == 0
    assert sorted(ran) == [("test", 0), ("train", 0), ("train", 1), ("train", 2)]  # each once
    assert len(first) == 2
    again = len(ran)
    assert prepare.main(arguments) == 0
    assert len(ran) == again
    (root / "images/train/class_0/00.png").rename(root / "images/train/class_0/000.png")
    assert prepare.main(arguments) == 0
    assert len(ran) == again + 1  # only the shard that changed


def test_what_is_missing_is_said(root: Path, capsys: pytest.CaptureFixture[str]):
    assert prepare.main(["places_lt", f"--root={root}"]) == 1
    assert "Places_LT_train.txt" in capsys.readouterr().err
    assert prepare.main(["nonsense"]) == 1
    assert "known: digits" in capsys.readouterr().err


def test_digits_can_be_packed_too(tmp_path: Path):
    assert prepare.main(["digits", f"--out={tmp_path}"]) == 0
    found, original = create("digits", tmp_path), create("digits", Path())
    np.testing.assert_array_equal(found.split("test").images[249], original.split("test").images[249])
    np.testing.assert_array_equal(found.split("val").labels, original.split("val").labels)
