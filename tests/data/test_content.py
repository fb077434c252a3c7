"""Fingerprints of files: of their content, not of their place or time; quick when nothing changed."""

import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from rac_jax.data import content
from rac_jax.data.files import FileImages

PATHS = np.array([b"a/1.jpg", b"a/2.jpg", b"b/3.jpg"])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three files of 20 kB, last changed an hour ago."""
    for number, path in enumerate(PATHS):
        file = tmp_path / "images" / path.decode()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bytes([number]) * 20_000)
    return tmp_path / "images"


def fingerprint(root: Path) -> str:
    return FileImages(str(root), PATHS).fingerprint()


def test_other_pixels_under_the_same_paths(root: Path):
    before = fingerprint(root)
    for place in (0, 19_999):  # the beginning and the end
        changed = bytearray((root / "a/2.jpg").read_bytes())
        changed[place] ^= 1
        (root / "a/2.jpg").write_bytes(changed)
        assert fingerprint(root) != before
        changed[place] ^= 1
        (root / "a/2.jpg").write_bytes(changed)
        assert fingerprint(root) == before
    (root / "a/2.jpg").write_bytes(bytes([1]) * 20_001)
    assert fingerprint(root) != before


def test_a_copy_is_the_same(root: Path, tmp_path: Path):
    shutil.copytree(root, tmp_path / "copy", copy_function=shutil.copyfile)
    os.utime(tmp_path / "copy/a/1.jpg", (0, 0))
    assert fingerprint(tmp_path / "copy") == fingerprint(root)
    (tmp_path / "copy/a/1.jpg").rename(tmp_path / "copy/a/0.jpg")
    assert fingerprint(tmp_path / "copy") != fingerprint(root)  # 1.jpg is missing: no error here, another fingerprint


def test_a_second_start_reads_no_file(root: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(content, "SETTLED", -1.0)
    first = fingerprint(root)
    monkeypatch.setattr(content, "samples", lambda *_: pytest.fail("read again"))
    assert fingerprint(root) == first
    monkeypatch.undo()
    (root / "b/3.jpg").write_bytes(b"other")
    assert fingerprint(root) != first


def test_a_change_that_keeps_size_and_time_is_noticed(root: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(content, "SETTLED", -1.0)
    first, file = fingerprint(root), root / "a/1.jpg"
    times = file.stat().st_atime_ns, file.stat().st_mtime_ns
    time.sleep(0.02)
    file.write_bytes(bytes([9]) * 20_000)
    os.utime(file, ns=times)
    assert fingerprint(root) != first


def test_files_changed_just_now_are_not_cached(root: Path):
    fingerprint(root)
    assert not content.cache_file().exists()


@pytest.mark.parametrize("damage", ["", "[1]", '{"a": 1}', "\0"])
def test_a_damaged_cache_is_not_used(root: Path, damage: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(content, "SETTLED", -1.0)
    first = fingerprint(root)
    content.cache_file().write_text(damage)
    assert fingerprint(root) == first
    assert content.cache_file().stat().st_size > 100  # and it is written again


def test_a_cache_that_cannot_be_written_is_no_error(root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(content, "SETTLED", -1.0)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert len(fingerprint(root)) == 64


def test_sample_of_bytes_is_that_of_the_file(root: Path):
    found = content.samples(str(root), PATHS.tolist())
    assert found == [content.sample((root / path.decode()).read_bytes()) for path in PATHS]
    assert len(set(found)) == 3
    os.mkfifo(root / "pipe")
    assert content.samples(str(root), [b"pipe", b"absent"]) == [content.NO_FILE] * 2
