"""Checking and packing, being interrupted, and reading what was packed."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rac_jax import config, data
from rac_jax.data import prepare, shards
from rac_jax.data.decode import BadImage


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


def create(name: str, root: Path, **settings):
    c = config.default()
    c.data.update(name=name, root=str(root), **settings)
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


def pack(name: str, root: Path, *options: str) -> Path:
    out = root / "packed"
    assert prepare.main([name, f"--root={root}/images", f"--out={out}", *options]) == 0
    return out


def test_packed_plain_and_made_long_tailed_later(root: Path):
    """As from the files: a setting that packing left open is honoured."""
    packed = create("folder", pack("folder", root), imbalance=4.0, seed=3)
    files = create("folder", root / "images", imbalance=4.0, seed=3)
    assert packed.class_counts.tolist() == files.class_counts.tolist() == [9, 4, 2]
    assert packed.fingerprint("train") == files.fingerprint("train")
    assert create("folder", root / "packed", val_share=0.3).fingerprint("train")  # its own splits: shares are not used


def test_packed_with_one_setting_and_read_with_another(root: Path, capsys: pytest.CaptureFixture[str]):
    out = pack("folder", root, "--imbalance=4", "--seed=3")
    assert "--config.data.imbalance=4.0 --config.data.seed=3" in capsys.readouterr().out  # how to train with it
    assert create("folder", out, imbalance=4.0, seed=3).class_counts.tolist() == [9, 4, 2]
    with pytest.raises(
        ValueError, match=r"config.data.imbalance is 8.0, but .* with 4.0: set --config.data.imbalance=4"
    ):
        create("folder", out, imbalance=8.0, seed=3)
    with pytest.raises(ValueError, match=r"config.data.seed is 0, but .*packed with 3.* pack again with --seed=0"):
        create("folder", out, imbalance=4.0)


def test_packed_shares(root: Path):
    (root / "images/test").rename(root / "test")
    out = pack("folder", root, "--test-share=0.3", "--val-share=0")
    found = create("folder", out, test_share=0.3, val_share=0.0)
    assert {name: len(split) for name, split in found.splits.items()} == {"train": 18, "test": 7}
    with pytest.raises(ValueError, match=r"config.data.val_share is 0.1, but .* packed with 0.0"):
        create("folder", out, test_share=0.3)


def test_packed_seed_of_the_digits(tmp_path: Path):
    assert prepare.main(["digits", f"--out={tmp_path}"]) == 0
    with pytest.raises(ValueError, match=r"config.data.seed is 5, but .* packed with 0"):
        create("digits", tmp_path, seed=5)
    with pytest.raises(ValueError, match=r"config.data.imbalance is 9.0, but digits is long-tailed already"):
        create("digits", tmp_path, imbalance=9.0)


@pytest.mark.parametrize("change", ["missing line", "other label", "cut records", "no records", "old", "manifest"])
def test_damage_is_noticed_before_anything_starts(root: Path, change: str):
    out = pack("folder", root)
    listed, records = out / "train.jsonl", out / "images-train.array_record-00000-of-00003"
    lines = listed.read_text().splitlines(keepends=True)
    if change == "missing line":
        listed.write_text("".join(lines[:4] + lines[5:]))
    elif change == "other label":
        listed.write_text("".join(lines).replace('"label": 0', '"label": 1', 1))
    elif change == "cut records":
        records.write_bytes(records.read_bytes()[:-9])
    elif change == "no records":
        records.unlink()
    elif change == "old":
        (out / "rac_jax.json").write_text('{"config_name": "folder", "splits": ["train"]}')
    else:
        (out / "rac_jax.json").write_text((out / "rac_jax.json").read_text().replace('"class_1"', "7", 1))
    with pytest.raises(ValueError, match=r"packed/.*pack again|another version.*pack it again"):
        create("folder", out)


def test_a_damaged_record_is_a_bad_image(root: Path):
    out = pack("folder", root)
    records = out / "images-train.array_record-00000-of-00003"
    whole = records.read_bytes()
    records.write_bytes(whole[:100] + bytes(len(whole) // 2) + whole[100 + len(whole) // 2 :])
    images = create("folder", out).split("train").images
    with pytest.raises(BadImage, match=r"packed, train 0: "):
        images[0]


def test_a_changed_file_is_packed_again(root: Path):
    out = pack("folder", root)
    before = create("folder", out)
    Image.new("RGB", (3, 3)).save(root / "images/train/class_0/00.png")
    after = create("folder", pack("folder", root))
    assert after.split("train").images[0].shape == (3, 3, 3)
    assert after.fingerprint("train") != before.fingerprint("train")
    assert after.fingerprint("test") == before.fingerprint("test")


@pytest.mark.parametrize(
    "arguments", [["tfds:no_such_set"], ["folder", "--root=/nowhere"], ["digits", "--imbalance=-1"]]
)
def test_errors_are_one_message(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    assert prepare.main(arguments) == 1
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ") and "Traceback" not in printed.err


def test_an_output_folder_that_cannot_be_written(root: Path, capsys: pytest.CaptureFixture[str]):
    (root / "file").write_text("")
    assert prepare.main(["folder", f"--root={root}/images", f"--out={root}/file/packed"]) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: ")
