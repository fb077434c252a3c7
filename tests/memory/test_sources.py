"""What can be added to a memory, and what each kind gives."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image

from rac_jax import config as configs
from rac_jax.data.sets import digits
from rac_jax.memory import sources
from tests.data.sets import test_tfds

mocked = test_tfds.mocked  # the fixture: TFDS's own mock of cifar100
PETS = {"cats/one.png": 40, "cats/two.png": 80, "sea_lions/one.png": 160}


@pytest.fixture
def pets(tmp_path):
    """A folder of three images in two class folders."""
    root = tmp_path / "pets"
    for path, grey in PETS.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (grey, grey, grey)).save(root / path)
    return root


def read(kind, **arguments):
    defaults = {"root": "", "split": "train", "classes": "", "texts": ""}
    return sources.read(configs.default(), kind, **{**defaults, **arguments})


def rows(content):
    """The (text, reference) of each row."""
    return list(zip(content.columns["text"].to_pylist(), content.columns["image"].to_pylist(), strict=True))


def labels(content):
    """The class name of each row, or None."""
    named = (*content.class_names, None)
    return [named[label] for label in content.columns["label"].to_pylist()]


def greys(content):
    return [int(content.split.images[i].mean()) for i in range(len(content))]


def test_class_folders_give_the_text(pets):
    content = read(f"folder:{pets}")
    assert rows(content) == [("cats", "cats/one.png"), ("cats", "cats/two.png"), ("sea lions", "sea_lions/one.png")]
    assert labels(content) == ["cats", "cats", "sea_lions"]
    assert greys(content) == [40, 80, 160]
    assert content.origin == f"folder:{pets}" and content.root == str(pets)
    assert content.split.images.enough == 2 * 224  # decoded as a run decodes


def test_a_folder_with_splits_gives_the_one_that_was_asked_for(pets, tmp_path):
    for split in ("train", "test"):
        (tmp_path / "both" / split).mkdir(parents=True)
    (pets / "cats").rename(tmp_path / "both" / "train" / "cats")
    (pets / "sea_lions").rename(tmp_path / "both" / "test" / "sea_lions")
    assert rows(read(f"folder:{tmp_path / 'both'}", split="test")) == [("sea lions", "test/sea_lions/one.png")]
    assert len(read(f"folder:{tmp_path / 'both'}")) == 2
    with pytest.raises(FileNotFoundError, match="none for val"):
        read(f"folder:{tmp_path / 'both'}", split="val")


def test_the_same_names_in_another_folder_are_other_images(pets, tmp_path):
    (tmp_path / "others").mkdir()
    pets.rename(tmp_path / "others" / "pets")
    moved = read(f"folder:{tmp_path / 'others' / 'pets'}")
    (tmp_path / "others" / "pets").rename(pets)
    assert moved.fingerprint != read(f"folder:{pets}").fingerprint == read(f"folder:{pets}").fingerprint


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_tables_with_captions(pets, ending):
    table = [
        {"path": "cats/two.png", "caption": "a cat, asleep", "label": ""},
        {"path": "sea_lions/one.png", "caption": "", "label": "sea_lions"},
    ]
    file = pets / f"table.{ending}"
    if ending == "csv":
        lines = ["path,caption,label", *(f'{r["path"]},"{r["caption"]}",{r["label"]}' for r in table)]
        file.write_text("\n".join(lines))
    elif ending == "jsonl":
        file.write_text("\n".join(map(json.dumps, table)))
    else:
        pa.parquet.write_table(pa.Table.from_pylist(table), file)
    content = read(f"table:{file}")
    assert rows(content) == [("a cat, asleep", "cats/two.png"), ("sea lions", "sea_lions/one.png")]
    assert labels(content) == [None, "sea_lions"]
    assert greys(content) == [80, 160]


def test_zero_is_a_label_and_what_is_missing_is_none(pets):
    table = [{"path": path, "caption": "x", "label": label} for path, label in zip(PETS, (0.0, 3.0, None), strict=True)]
    pa.parquet.write_table(pa.Table.from_pylist(table), pets / "t.parquet")
    assert labels(read(f"table:{pets / 't.parquet'}")) == ["0", "3", None]
    (pets / "t.jsonl").write_text("\n".join(json.dumps(row | {"label": 0}) for row in table))
    assert labels(read(f"table:{pets / 't.jsonl'}")) == ["0", "0", "0"]


def test_a_table_row_without_text_is_named(pets):
    (pets / "t.csv").write_text("path,caption\ncats/one.png,a cat\ncats/two.png,\n")
    with pytest.raises(ValueError, match=r"t\.csv, line 3: neither a caption nor a label"):
        read(f"table:{pets / 't.csv'}")
    (pets / "t.csv").write_text("path,caption\ncats/nine.png,a cat\n")
    with pytest.raises(FileNotFoundError, match=r"cats/nine\.png"):
        read(f"table:{pets / 't.csv'}")


def test_a_list_with_class_names(pets):
    (pets / "list.txt").write_text("sea_lions/one.png 1\ncats/two.png 0\n")
    (pets / "names.txt").write_text("house_cat\nsea lion\n")
    content = read(f"list:{pets / 'list.txt'}", classes=str(pets / "names.txt"))
    assert rows(content) == [("sea lion", "sea_lions/one.png"), ("house cat", "cats/two.png")]
    assert labels(content) == ["sea lion", "house_cat"]
    assert greys(content) == [160, 80]
    with pytest.raises(ValueError, match="needs --classes"):
        read(f"list:{pets / 'list.txt'}")
    (pets / "list.txt").write_text("cats/none.png 0\n")
    with pytest.raises(FileNotFoundError, match=r"line 1: there is no file .*cats/none\.png"):
        read(f"list:{pets / 'list.txt'}", classes=str(pets / "names.txt"))


def test_keys_with_a_line_of_text_each(tmp_path):
    keys = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.save(tmp_path / "k.npy", keys)
    (tmp_path / "t.txt").write_text("red\ngreen\nred\n")
    content = read(f"keys:{tmp_path / 'k.npy'}", texts=str(tmp_path / "t.txt"))
    np.testing.assert_array_equal(content.keys, keys)
    assert rows(content) == [("red", "k.npy/0"), ("green", "k.npy/1"), ("red", "k.npy/2")]
    (tmp_path / "t.csv").write_text("path,caption\na.png,red\nb.png,green\nc.png,blue\n")
    content = read(f"keys:{tmp_path / 'k.npy'}", texts=str(tmp_path / "t.csv"))
    assert rows(content) == [("red", "a.png"), ("green", "b.png"), ("blue", "c.png")]
    assert labels(content) == [None] * 3


def test_keys_with_labels(tmp_path):
    np.save(tmp_path / "k.npy", np.eye(3, dtype=np.float32))
    (tmp_path / "t.txt").write_text("red\ngreen\nred\n")
    (tmp_path / "l.txt").write_text("warm\n\nwarm\n")
    kind, texts = f"keys:{tmp_path / 'k.npy'}", str(tmp_path / "t.txt")
    content = read(kind, texts=texts, labels=str(tmp_path / "l.txt"))
    assert labels(content) == ["warm", None, "warm"]
    assert content.fingerprint != read(kind, texts=texts).fingerprint
    (tmp_path / "t.csv").write_text("caption,label\nred,warm\ngreen,\nblue,cold\n")
    assert labels(read(kind, texts=str(tmp_path / "t.csv"))) == ["warm", None, "cold"]
    (tmp_path / "l.txt").write_text("warm\n")
    with pytest.raises(ValueError, match=r"l\.txt has 1 labels, but .*k\.npy has 3 keys"):
        read(kind, texts=texts, labels=str(tmp_path / "l.txt"))


def test_a_caption_may_contain_other_line_separators(tmp_path):
    np.save(tmp_path / "k.npy", np.eye(2, dtype=np.float32))
    (tmp_path / "t.txt").write_text("one\u2028line\nanother\x85line\n", encoding="utf-8")
    content = read(f"keys:{tmp_path / 'k.npy'}", texts=str(tmp_path / "t.txt"))
    assert [text for text, _ in rows(content)] == ["one\u2028line", "another\x85line"]


def test_a_class_that_is_named_twice_and_an_archive_of_keys_are_refused(pets, tmp_path):
    (pets / "list.txt").write_text("cats/two.png 0\n")
    (pets / "names.txt").write_text("cat\ndog\ncat\n")
    with pytest.raises(ValueError, match=r"names\.txt names the class 'cat' twice"):
        read(f"list:{pets / 'list.txt'}", classes=str(pets / "names.txt"))
    np.savez(tmp_path / "k.npz", a=np.eye(2))
    with pytest.raises(ValueError, match=r"k\.npz is an archive of arrays, not a \.npy file"):
        read(f"keys:{tmp_path / 'k.npz'}", texts=str(pets / "names.txt"))


def test_wrong_keys(tmp_path):
    (tmp_path / "t.txt").write_text("red\n")
    np.save(tmp_path / "k.npy", np.zeros((3, 4), np.float32))
    with pytest.raises(ValueError, match=r"t\.txt has 1 texts, but .*k\.npy has 3 keys"):
        read(f"keys:{tmp_path / 'k.npy'}", texts=str(tmp_path / "t.txt"))
    np.save(tmp_path / "k.npy", np.zeros((1, 4), np.int32))
    with pytest.raises(ValueError, match=r"holds int32 \[1, 4\]; keys are floating-point"):
        read(f"keys:{tmp_path / 'k.npy'}", texts=str(tmp_path / "t.txt"))
    np.save(tmp_path / "k.npy", np.array([{"evil": 1}]), allow_pickle=True)
    with pytest.raises(ValueError, match=r"k\.npy is not a \.npy file"):
        read(f"keys:{tmp_path / 'k.npy'}", texts=str(tmp_path / "t.txt"))
    with pytest.raises(FileNotFoundError, match="there is no file"):
        read("keys:nowhere.npy", texts="x")


def test_any_data_set_of_a_config(tmp_path):
    content = read("digits", split="test")
    test = digits.load(0).split("test")
    assert content.origin == "digits, test" and len(content) == 250
    assert labels(content) == [digits.load(0).class_names[label] for label in test.labels]
    assert content.columns["text"].to_pylist() == [digits.WORDS[label] for label in test.labels]
    assert content.fingerprint == digits.load(0).fingerprint("test")  # so a run knows its own images


def test_bad_images_are_left_out_if_asked(pets):
    (pets / "cats" / "three.png").write_bytes(b"no image")
    config = configs.default()
    config.data.on_bad_image = "skip"
    content = sources.read(config, f"folder:{pets}", root="", split="train", classes="", texts="")
    assert [reference for _, reference in rows(content)] == sorted(PETS)


def test_a_tfds_data_set(mocked):
    content = read("tfds:cifar100", root=str(mocked), split="test")
    assert len(content) == 30 and content.origin == "cifar100, test"
    assert rows(content)[1] == ("1", "test/1")  # the mock numbers its classes
    assert [int(content.split.images[i][0, 0, 0]) for i in (0, 29)] == [0, 29]
