"""Atomic writing."""

import os
from pathlib import Path

import pytest

from rac_jax.runtime import files


def test_the_folder_is_flushed_after_the_rename(tmp_path, monkeypatch):
    """The name of a new file survives a power failure only if its folder was flushed after the rename."""
    calls, path = [], tmp_path / "value.json"
    fsync = os.fsync

    def noted(descriptor):
        calls.append((str(Path(f"/proc/self/fd/{descriptor}").readlink()), path.exists()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    files.write_json(path, {"a": 1})
    assert path.read_text() == '{\n  "a": 1\n}\n'
    assert [(name.startswith(str(path)), there) for name, there in calls] == [(True, False), (False, True)]
    assert calls[1][0] == str(tmp_path)


def test_a_failed_write_keeps_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "value.json"
    files.write_text(path, "old")
    with pytest.raises(OSError, match=r"value\.json cannot be written: full"), files.atomic(path) as temporary:
        temporary.write_text("half")
        raise OSError(28, "full")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("value.json", "old")]


def test_a_folder_appears_whole_or_not_at_all(tmp_path):
    with pytest.raises(KeyError), files.atomic_folder(tmp_path / "folder") as new:
        files.write_text(new / "a.txt", "half")
        raise KeyError
    with files.atomic_folder(tmp_path / "folder"):
        pass  # nothing was made
    assert not list(tmp_path.iterdir())
    with files.atomic_folder(tmp_path / "folder") as new:
        files.write_text(new / "a.txt", "whole")
        assert not (tmp_path / "folder").exists()
    assert [(p.name, p.read_text()) for p in (tmp_path / "folder").iterdir()] == [("a.txt", "whole")]
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]
