"""A user's own table, in each format, and every way in which one can be wrong."""

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from rac_jax import config, data

ROWS = [
    {"path": "img/1.png", "label": "red_fox", "caption": "a fox in snow", "split": "train"},
    {"path": "img/2.png", "label": "cat", "caption": "", "split": "train"},
    {"path": "img/3.png", "label": "cat", "caption": "a cat", "split": "validation"},
    {"path": "img/4.png", "label": "cat", "caption": "an old cat", "split": "test"},
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "img").mkdir()
    for number in range(1, 5):
        Image.new("RGB", (4, 4), (number, 0, 0)).save(tmp_path / f"img/{number}.png")
    return tmp_path


def create(file: Path, root: str = ""):
    c = config.default()
    c.data.update(name=f"table:{file}", root=root)
    return data.load(c)


def write(file: Path, rows: list[dict]) -> Path:
    if file.suffix == ".csv":
        lines = [",".join(rows[0]), *(",".join(str(value) for value in row.values()) for row in rows)]
        file.write_text("\n".join(lines) + "\n")
    elif file.suffix == ".jsonl":
        file.write_text("\n".join(json.dumps(row) for row in rows))
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    return file


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_every_format(root: Path, ending: str):
    found = create(write(root / f"animals.{ending}", ROWS))
    assert found.name == "animals"
    assert found.class_texts == ("cat", "red fox")
    assert {name: split.labels.tolist() for name, split in found.splits.items()} == {
        "train": [1, 0],
        "val": [0],
        "test": [0],
    }
    assert found.split("train").captions == ["a fox in snow", ""]
    assert found.split("test").images[0][0, 0].tolist() == [4, 0, 0]


def test_another_root_numbers_and_no_splits(root: Path, tmp_path_factory: pytest.TempPathFactory):
    rows = [{"path": f"img/{number}.png", "label": number % 2} for number in range(1, 5)]
    file = write(tmp_path_factory.mktemp("lists") / "t.csv", rows)
    found = create(file, str(root))
    assert found.class_names == ("0", "1")
    assert found.split("train").captions is None
    assert len(found.split("train")) == 4  # of two images a class, a tenth and a fifth are none
    assert list(found.splits) == ["train"]


def changed(number: int, **values) -> list[dict]:
    return [{**row, **values} if position == number else row for position, row in enumerate(ROWS)]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (changed(2, path="img/9.png"), r"t\.csv, line 4: there is no file .*img/9\.png"),
        (changed(3, path="img/1.png"), r"t\.csv, line 5: img/1\.png is already on line 2"),
        (changed(1, split="dev"), r"t\.csv, line 3: split is 'dev'; known: train, val, test"),
        (changed(1, label=""), r"t\.csv, line 3: no label; the columns are \['path', 'label'"),
        ([{"path": "img/1.png", "class": "a"}], r"t\.csv, line 2: no label; the columns are \['path', 'class'\]"),
        (changed(0, label="dog", split="test"), r"1 classes have no training image: 'dog' \(1\)"),
        ([{**row, "split": "test"} for row in ROWS], r"no row is of the split train"),
        ([{"path": f"img/{i}.png", "label": i} for i in (1, 2, 3)], r"labels are numbers up to 3, without 0"),
    ],
)
def test_a_wrong_table_is_reported_by_line(root: Path, rows: list[dict], message: str):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        create(write(root / "t.csv", rows))


def test_a_wrong_file(root: Path):
    with pytest.raises(FileNotFoundError, match=r"no such file"):
        create(root / "absent.csv")
    (root / "t.txt").write_text("path label\n")
    with pytest.raises(ValueError, match=r"a table ends in \.csv, \.jsonl or \.parquet"):
        create(root / "t.txt")
    (root / "t.csv").write_text("path,label\n")
    with pytest.raises(ValueError, match="no rows"):
        create(root / "t.csv")
    (root / "t.jsonl").write_text('{"path": "img/1.png", "label": "a"}\n{"path": \n')
    with pytest.raises(ValueError, match=r"t\.jsonl, line 2: not a JSON object"):
        create(root / "t.jsonl")
