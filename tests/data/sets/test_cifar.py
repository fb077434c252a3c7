"""The published binary files, in miniature."""

from pathlib import Path

import numpy as np
import pytest

from rac_jax import config, data
from rac_jax.data.missing import MissingData


def create(name: str, root: Path, imbalance: float = 0.0):
    c = config.default()
    c.data.update(name=name, root=str(root), imbalance=imbalance)
    return data.load(c)


def write_binary(folder: Path, names: str, files: list[str], classes: int, label_bytes: int) -> None:
    folder.mkdir()
    (folder / names).write_text("\n".join(f"class_{i}" for i in range(classes)) + "\n\n")
    for number, file in enumerate(files):
        rows = np.zeros((4 * classes, label_bytes + 3072), np.uint8)
        rows[:, label_bytes - 1] = np.arange(4 * classes) % classes
        rows[:, label_bytes : label_bytes + 1024] = 100 + number  # the red plane comes first
        rows[:, label_bytes + 1] = 7  # second pixel of the first row
        rows.tofile(folder / file)


def test_cifar100(tmp_path: Path):
    write_binary(tmp_path / "cifar-100-binary", "fine_label_names.txt", ["train.bin", "test.bin"], 100, 2)
    found = create("cifar100_lt", tmp_path, imbalance=4.0)
    assert found.name == "cifar100_lt"
    assert found.class_texts[3] == "class 3"
    assert found.class_counts[[0, 50, 99]].tolist() == [4, 1, 1]
    assert len(found.split("test")) == 400
    image = found.split("train").images[0]
    assert image[0, :3].tolist() == [[100, 0, 0], [7, 0, 0], [100, 0, 0]]
    assert create("cifar100_lt", tmp_path).class_counts.tolist() == [4] * 100


def test_cifar10(tmp_path: Path):
    files = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    write_binary(tmp_path / "cifar-10-batches-bin", "batches.meta.txt", files, 10, 1)
    found = create("cifar10_lt", tmp_path / "cifar-10-batches-bin", imbalance=10.0)
    assert found.class_counts.tolist() == [20, 15, 11, 9, 7, 5, 4, 3, 2, 2]


def test_absent_or_cut_short(tmp_path: Path):
    with pytest.raises(MissingData, match=r"CIFAR-100[\s\S]*binary version[\s\S]*tfds build cifar100"):
        create("cifar100_lt", tmp_path)
    write_binary(tmp_path / "cifar-100-binary", "fine_label_names.txt", ["train.bin", "test.bin"], 100, 2)
    file = tmp_path / "cifar-100-binary/test.bin"
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(ValueError, match=r"test\.bin: \d+ bytes is not a multiple of 3074; the file was cut short"):
        create("cifar100_lt", tmp_path)
