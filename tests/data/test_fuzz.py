"""Random and damaged files: the outcome is sane, or an error of our own with a message. Seeded; about 1,500 inputs."""

import io
import json
import shutil
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image
from sklearn.datasets import load_sample_images

from rac_jax import config, data
from rac_jax.data import prepare, reading, shards
from rac_jax.data.decode import BadImage
from rac_jax.data.files import read_list
from rac_jax.data.sets import tfds
from tests.data.test_prepare import Here

PACKAGE = Path(data.__file__).parents[1]
KINDS = ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "AVIF")


def ours(error: BaseException) -> bool:
    """Raised in rac_jax, with a message."""
    last = traceback.extract_tb(error.__traceback__)[-1].filename
    return Path(last).is_relative_to(PACKAGE) and bool(str(error))


def attempt(function: Callable[[], Any]) -> Any:
    """The result, or None for an error of ours; any other error fails the test."""
    try:
        return function()
    except (ValueError, OSError) as error:
        assert ours(error), f"not an error of ours: {error!r}"
        return None


def mutated(content: bytes, random: np.random.Generator, most: int = 5) -> bytes:
    """A few bytes changed, removed or inserted, or the end cut off."""
    changed = bytearray(content)
    for _ in range(random.integers(1, most + 1)):
        place = int(random.integers(len(changed))) if changed else 0
        kind = random.integers(5)
        if kind == 0:
            del changed[place:]
        elif kind == 1:
            del changed[place : place + int(random.integers(1, 20))]
        elif kind == 2:
            changed[place:place] = random.bytes(int(random.integers(1, 9)))
        elif kind == 3:
            changed[place:place] = bytes(random.choice(list(b'\0\n\r",{}[]: 0\xff\xfe\xe2\x80\xa8'), 2).tolist())
        elif changed:
            changed[place] = int(random.integers(256))
    return bytes(changed)


def images() -> list[bytes]:
    photo = Image.fromarray(load_sample_images().images[0]).resize((48, 32))
    result = []
    for kind in KINDS:
        buffer = io.BytesIO()
        photo.save(buffer, kind)
        result.append(buffer.getvalue())
    return result


@pytest.mark.filterwarnings("ignore")  # Pillow warns about odd metadata
def test_images(tmp_path: Path):
    random, originals, good = np.random.default_rng(0), images(), 0
    for number in range(800):
        content = mutated(originals[number % len(originals)], random) if number % 10 else random.bytes(number)
        (tmp_path / "x.jpg").write_bytes(content)
        try:
            image = reading.read_image(tmp_path / "x.jpg", 8)
        except BadImage as error:
            assert "x.jpg: not a usable image (" in str(error)
        else:
            good += 1
            assert image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3 and image.size
    assert 50 < good < 750


def tables() -> dict[str, bytes]:
    rows = [{"path": f"{i}.png", "label": f"c{i % 2}", "caption": "a, b", "split": "train"} for i in range(4)]
    lines = ["path,label,caption,split", *(f'{row["path"]},{row["label"]},"a, b",train' for row in rows)]
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), buffer)
    return {
        "t.csv": "\n".join(lines).encode(),
        "u.csv": "\n".join(lines).encode("utf-16"),
        "t.jsonl": "\n".join(map(json.dumps, rows)).encode(),
        "t.parquet": buffer.getvalue(),
    }


def load(**settings: Any) -> data.Dataset:
    c = config.default()
    c.data.update(**settings)
    return data.load(c)


def check(dataset: data.Dataset | None) -> bool:
    """A data set that was read is consistent."""
    if dataset is None:
        return False
    assert len(dataset.class_names) == len(dataset.class_texts) == len(set(dataset.class_names))
    assert all(dataset.class_texts) and not any(name.strip() in ("", "nan") for name in dataset.class_names)
    for split in dataset.splits.values():
        assert len(split.images) == len(split.labels)
        assert split.captions is None or len(split.captions) == len(split)
        assert ((split.labels >= 0) & (split.labels < dataset.num_classes)).all()
    return True


def test_tables(tmp_path: Path):
    random, good = np.random.default_rng(1), 0
    for number in range(4):
        Image.new("RGB", (4, 4), (number, 0, 0)).save(tmp_path / f"{number}.png")
    for name, original in tables().items():
        assert check(load(name=f"table:{tmp_path / write(tmp_path / name, original)}"))
        for number in range(100):
            write(tmp_path / name, mutated(original, random, most=1) if number % 10 else random.bytes(3 * number))
            good += check(attempt(lambda name=name: load(name=f"table:{tmp_path / name}")))
    assert 20 < good < 380


def write(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return path.name


def test_lists(tmp_path: Path):
    random, original = np.random.default_rng(2), b"".join(b"a/%d.jpg %d\n" % (i, i % 3) for i in range(8))
    for number in range(200):
        (tmp_path / "list.txt").write_bytes(mutated(original, random) if number % 10 else random.bytes(number))
        found = attempt(lambda: read_list(tmp_path / "list.txt", 3))
        if found:
            assert all(0 <= label < 3 for label in found.labels) and len(found.labels) == len(set(found.paths))


def test_packed_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prepare, "ProcessPoolExecutor", Here)
    monkeypatch.setattr(shards, "SHARD", 4)
    for number in range(8):
        path = tmp_path / f"images/{('train', 'test')[number // 6]}/{'ab'[number % 2]}/{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (10 * number, 0, 0)).save(path)
    assert prepare.main(["folder", f"--root={tmp_path}/images", f"--out={tmp_path}/packed"]) == 0
    files = sorted(path for path in (tmp_path / "packed").iterdir() if path.suffix != ".notes")
    random, read = np.random.default_rng(3), 0
    for number in range(80):
        copy = tmp_path / f"copy{number}"
        shutil.copytree(tmp_path / "packed", copy)
        damaged = copy / files[number % len(files)].name
        content = damaged.read_bytes()
        if number % 2 and "array_record" in damaged.name:  # of the same size, so that only reading can tell
            place = int(random.integers(len(content) - 8))
            content = content[:place] + random.bytes(8) + content[place + 8 :]
        else:
            content = mutated(content, random)
        damaged.write_bytes(content)
        dataset = attempt(lambda copy=copy: load(name="folder", root=str(copy)))
        if check(dataset):
            assert dataset is not None
            for split in dataset.splits.values():
                for position in range(len(split)):
                    image = attempt(lambda split=split, position=position: split.images[position])
                    read += image is not None
        for cached in (tfds.builder, tfds.source):
            cached.cache_clear()
    assert read > 50
