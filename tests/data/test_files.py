"""Lists of images."""

from pathlib import Path

import pytest

from rac_jax.data.files import file_split, read_list


def test_a_list(tmp_path: Path):
    source = tmp_path / "list.txt"
    source.write_bytes("\ufeffa b/1.jpg 0\r\n\nc\u2028d.jpg\t1\n".encode())
    found = read_list(source, 2)
    assert (found.paths, found.labels, found.lines) == (["a b/1.jpg", "c\u2028d.jpg"], [0, 1], [1, 3])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a.jpg\n", "line 1: expected `path label`"),
        (b"a.jpg 0\nb.jpg 2\n", "line 2: label 2 of b.jpg; labels go from 0 to 1"),
        (b"a.jpg 0\na.jpg 1\n", "line 2: a.jpg is already on line 1"),
        (b"a.jpg 0\ncaf\xe9.jpg 1\n", "line 2: byte 0xe9 is not UTF-8"),
        (b"a.jpg " + b"9" * 5000, "line 1: expected `path label`"),
    ],
)
def test_a_wrong_list_is_reported_by_line(tmp_path: Path, content: bytes, message: str):
    (tmp_path / "list.txt").write_bytes(content)
    with pytest.raises(ValueError, match=f"list.txt, {message}"):
        read_list(tmp_path / "list.txt", 2)


def test_a_path_that_is_no_unicode(tmp_path: Path):
    with pytest.raises(ValueError, match=r"'\\ud800.jpg': the path is not valid Unicode"):
        file_split("train", tmp_path, ["\ud800.jpg"], [0])
