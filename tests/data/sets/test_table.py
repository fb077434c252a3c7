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


def test_numbers_are_names_in_their_order_wherever_they_begin(root: Path):
    rows = [{"path": f"img/{number}.png", "label": label} for number, label in ((1, 10), (2, 2), (3, 10), (4, 7))]
    found = create(write(root / "t.csv", rows))
    assert found.class_names == ("2", "7", "10")
    assert found.split("train").labels.tolist() == [2, 0, 2, 1]


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


HEADER = "path,label,caption,split\n"
GOOD = "img/1.png,red_fox,a fox,train\nimg/2.png,cat,,train\n"


def texts_of(found) -> list[str]:
    return list(found.split("train").captions or ())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ((HEADER + GOOD + "img/3.png,cat,a cat, asleep,test\n").encode(), r"line 4: 5 values for 4 columns; .*quotes"),
        ((HEADER + GOOD + 'img/3.png,cat,"a cat,test\nimg/4.png,cat,,test\n').encode(), r"line 4: not CSV .*quote"),
        ((HEADER + GOOD + "img/3.png,nan,,test\n").encode(), r"line 4: label is 'nan', .* a value is missing"),
        ((HEADER + GOOD + "img/3.png,caf\xe9,,test\n").encode("latin-1"), r"line 4: byte 0xe9 is not UTF-8; save"),
        ((HEADER + GOOD).encode("utf-16-le"), r"line 1: a NUL character"),
        (b"path,label,label\nimg/1.png,a,b\n", r"line 1: two columns are called 'label'"),
        (b"path;label\nimg/1.png;a\n", r"line 2: no path and no label; the columns are \['path;label'\]"),
        (b"path,label\nimg/1.png,\n", r"line 2: no label"),
    ],
)
def test_a_wrong_csv_is_reported_by_line(root: Path, content: bytes, message: str):
    (root / "t.csv").write_bytes(content)
    with pytest.raises(ValueError, match=rf"t\.csv, {message}"):
        create(root / "t.csv")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_encodings_and_capitals(root: Path, encoding: str):
    (root / "T.CSV").write_bytes((HEADER + "img/1.png,café,un café,train\nimg/2.png,cat,,train\n").encode(encoding))
    assert create(root / "T.CSV").class_names == ("café", "cat")


def test_white_space_makes_no_class(root: Path):
    (root / "t.csv").write_text('path, label , caption\nimg/1.png, cat,\nimg/2.png,cat ,\nimg/3.png,"dog", x\n\n,,\n')
    found = create(root / "t.csv")
    assert found.class_names == ("cat", "dog") and len(found.split("train")) == 3
    assert texts_of(found) == ["", "", "x"]


def test_a_quoted_caption_may_have_commas_and_lines(root: Path):
    (root / "t.csv").write_text(
        HEADER + 'img/1.png,a,"red, ""old""\nfox",train\nimg/2.png,b,x,train\nimg/9.png,b,x,train\n'
    )
    with pytest.raises(FileNotFoundError, match=r"line 5: there is no file"):  # line 5 of the file, not of the rows
        create(root / "t.csv")
    (root / "t.csv").write_text(HEADER + 'img/1.png,a,"red, ""old""\nfox",train\nimg/2.png,b,x,train\n')
    assert texts_of(create(root / "t.csv")) == ['red, "old"\nfox', "x"]


def test_separators_of_unicode_split_no_line(root: Path):
    odd = "a\u2028b\u0085c\x0bd"
    rows = [{"path": f"img/{i}.png", "label": "x", "caption": odd} for i in (1, 2)]
    (root / "t.jsonl").write_text("\ufeff" + "".join(json.dumps(row, ensure_ascii=False) + "\r\n" for row in rows))
    assert texts_of(create(root / "t.jsonl")) == [odd, odd]
    (root / "t.csv").write_text(f"path,label,caption\nimg/1.png,x,{odd}\n")
    assert texts_of(create(root / "t.csv")) == [odd]


def test_numbers_and_what_is_missing(root: Path):
    """pandas turns a column of numbers with a gap into floats; 0 is a label."""
    rows = [{"path": f"img/{i}.png", "label": label} for i, label in ((1, 0.0), (2, 1.0), (3, 0.0))]
    assert create(write(root / "t.parquet", rows)).class_names == ("0", "1")
    with pytest.raises(ValueError, match=r"t\.parquet, row 1: no label"):
        create(write(root / "t.parquet", [rows[0], {"path": "img/2.png", "label": float("nan")}]))
    (root / "t.jsonl").write_text(
        '{"path": "img/1.png", "label": 0, "caption": NaN}\n{"path": "img/2.png", "label": 1}'
    )
    found = create(root / "t.jsonl")
    assert found.class_names == ("0", "1") and found.split("train").captions is None
    (root / "t.jsonl").write_text('{"path": "img/1.png", "label": ["a"]}')
    with pytest.raises(ValueError, match=r"line 1: label is \['a'\]; it must be a text or a number"):
        create(root / "t.jsonl")
    (root / "t.jsonl").write_text("7\n")
    with pytest.raises(ValueError, match=r"line 1: not a JSON object but 7"):
        create(root / "t.jsonl")
    (root / "t.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(ValueError, match=r"t\.parquet: not a readable Parquet file"):
        create(root / "t.parquet")


def test_a_split_named_in_some_rows_only(root: Path):
    (root / "t.jsonl").write_text(
        '{"path": "img/1.png", "label": "a"}\n{"path": "img/2.png", "label": "a", "split": "test"}'
    )
    with pytest.raises(ValueError, match=r"line 1: split is ''; known: train, val, test"):
        create(root / "t.jsonl")
