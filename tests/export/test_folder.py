"""A run is exported by the command, moved, and answers where the original and its files are gone."""

import dataclasses
import errno
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

import rac_jax
from rac_jax import data, weights
from rac_jax.export import folder as export
from rac_jax.memory import manifest, store
from rac_jax.retrieval import tokenizers
from rac_jax.run import with_own_files
from rac_jax.runtime import workdirs
from tests import tiny


def command(module, *arguments, **environment):
    done = subprocess.run(
        [sys.executable, "-m", f"rac_jax.{module}", *map(str, arguments)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.slow
def test_the_command_exports_a_run_that_answers_elsewhere_and_starts_quickly_again(trained, tmp_path):
    original = shutil.copytree(trained, tmp_path / "original")
    Image.fromarray(data.load(tiny.config()).split("test").images[0]).save(tmp_path / "a.png")
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "JAX_COMPILATION_CACHE_DIR": ""}
    expected = json.loads(command("predict", "--json", f"--workdir={original}", tmp_path / "a.png", **cache).stdout)
    compiled = sorted(path.name for path in (tmp_path / "cache").rglob("*-cache"))
    assert len(compiled) >= 2  # E and the answer: no program has a callback
    command("export", f"--workdir={original}", f"--to={tmp_path / 'new'}", "--with-encoder")
    original.rename(tmp_path / "gone")
    moved = (tmp_path / "new").rename(tmp_path / "moved")
    shown = command("predict", "--json", f"--workdir={moved}", tmp_path / "a.png", **cache)
    answer = json.loads(shown.stdout)
    assert answer["label"] == expected["label"] and answer["neighbours"] == expected["neighbours"]
    assert answer["probability"] == pytest.approx(expected["probability"], rel=1e-5)
    assert "orbax" not in shown.stderr and "read_only" not in shown.stderr
    assert sorted(path.name for path in (tmp_path / "cache").rglob("*-cache")) == compiled  # nothing was compiled


def test_an_export_is_complete_or_absent(trained, tmp_path):
    export.write(trained, tmp_path / "new")
    found = {path.name for path in (tmp_path / "new").iterdir()}
    assert found == {
        "README.md",
        "config.json",
        "data.json",
        "checkpoints",
        "memory",
        "eval",
        "coverage.json",
        "held_out.npy",
        "vocabulary",
    }
    assert [path.name for path in (tmp_path / "new" / "checkpoints").iterdir()] == ["20"]
    assert store.read(tmp_path / "new" / "memory").fingerprint == store.read(trained / "memory").fingerprint
    config, before = workdirs.read_config(tmp_path / "new"), workdirs.read_config(trained)
    assert (config.data.root, config.memory.dir, config.weights_dir) == ("", "", "")
    config.data.root = before.data.root
    assert config.to_dict() == before.to_dict()
    text = (tmp_path / "new" / "README.md").read_text()
    assert "voices: base, text" in text and "Accuracy in % on test, 250 images" in text
    damaged = shutil.copytree(trained, tmp_path / "damaged")
    (damaged / "memory" / manifest.read(damaged / "memory").keys).unlink()
    with pytest.raises(OSError, match=r"keys-\d+\.bin"):
        export.write(damaged, tmp_path / "other")
    damaged = shutil.copytree(trained, tmp_path / "damaged_too")
    (damaged / "checkpoints" / "20" / "state" / "_METADATA").write_text("{}")
    with pytest.raises(ValueError, match=r"the checkpoint is damaged: .*_METADATA has another checksum"):
        export.write(damaged, tmp_path / "other")
    assert not list(tmp_path.glob("other*"))


def test_an_error_names_what_cannot_be_read_or_that_the_new_folder_cannot_be_written(trained, tmp_path, monkeypatch):
    run, to = shutil.copytree(trained, tmp_path / "run"), tmp_path / "new"

    def refused(to=to, **given):
        with pytest.raises(OSError, match=r"\w") as error:
            export.write(run, to, **given)
        assert not list(tmp_path.glob("new*"))
        return str(error.value)

    (run / "eval" / "more.json").symlink_to(run / "gone.json")
    assert refused().startswith(f"{run / 'eval' / 'more.json'} cannot be read: ")
    (run / "eval" / "more.json").unlink()
    config = workdirs.read_config(run)
    config.model.encoder.weights = str(tmp_path / "gone.pth")
    workdirs.write_config(config, run)
    assert "gone.pth' is neither a file nor" in (said := refused(with_encoder=True)) and "written" not in said
    (tmp_path / "file").touch()
    assert refused(tmp_path / "file" / "new") == f"{tmp_path / 'file' / 'new'} cannot be written: Not a directory"

    copyfile = shutil.copyfile
    for folder in ("checkpoints", "memory"):  # the first is copied as a whole, the second file by file

        def full(source, copy, folder=folder, **given):
            if folder in str(copy):
                raise OSError(errno.ENOSPC, "No space left on device", str(source), None, str(copy))
            return copyfile(source, copy, **given)

        monkeypatch.setattr(shutil, "copyfile", full)
        assert (said := refused()).startswith(f"{to} cannot be written: ") and "No space left on device" in said


def test_an_export_brings_the_vocabulary_of_t(trained, tmp_path, monkeypatch):
    export.write(trained, tmp_path / "new")
    texts = ["Granny Smith apples", "a naïve 2 %"]
    expected = tokenizers.from_config(workdirs.read_config(trained))
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *of: None if name == "clip" else real(name, *of))
    with pytest.raises(FileNotFoundError, match="openai-clip"):
        tokenizers.from_config(workdirs.read_config(trained))
    config = with_own_files(workdirs.read_config(tmp_path / "new"), tmp_path / "new")
    found = tokenizers.from_config(config)
    assert found.encode(texts) == expected.encode(texts) and found.fingerprint == expected.fingerprint
    export.write(tmp_path / "new", tmp_path / "again")  # an export can be exported
    assert (tmp_path / "again" / "vocabulary" / tokenizers.CLIP_FILE).is_file()
    assert rac_jax.load(tmp_path / "new").predict(data.load(tiny.config()).split("test").images[0])["label"]


def test_no_path_of_this_machine_is_exported(trained, tmp_path):
    run = shutil.copytree(trained, tmp_path / "run")
    config = workdirs.read_config(run)
    model, image = rac_jax.load(run), data.load(config).split("test").images[0]
    (tmp_path / "photos" / "new").mkdir(parents=True)
    Image.fromarray(image).save(tmp_path / "photos" / "new" / "a.png")
    (tmp_path / "t.csv").write_text("path,label\nphotos/new/a.png,new\n")
    model.add(tmp_path / "photos")
    model.add(tmp_path / "t.csv", source="table")
    model.add([image], ["new"], source="mine")
    config.memory.kept_keys = config.compiled = str(tmp_path / "here")
    config.data.root, config.data.name = str(tmp_path), f"table:{tmp_path / 't.csv'}"
    workdirs.write_config(config, run)
    export.write(run, tmp_path / "new")
    found = workdirs.read_config(tmp_path / "new")
    assert (found.memory.kept_keys, found.compiled, found.data.name) == ("", "", "table:t.csv")
    sources = manifest.read(tmp_path / "new" / "memory").sources
    assert [(source.origin, source.root) for source in sources[1:]] == [
        ("folder:photos", ""),
        ("table:t.csv", ""),
        ("table:table.jsonl", "../images/mine"),
    ]
    contents = {path: path.read_bytes() for path in (tmp_path / "new").rglob("*") if path.is_file()}
    assert len(contents) > 20
    for machine in (str(tmp_path), str(trained), str(Path.home())):
        assert [path for path, content in contents.items() if machine.encode() in content] == []
    export.write(tmp_path / "new", tmp_path / "again")
    assert manifest.read(tmp_path / "again" / "memory").sources[3].root == "../images/mine"
    export.write(run, tmp_path / "mixed", memory=tmp_path / "new" / "memory")  # of another run with such a folder
    assert manifest.read(tmp_path / "mixed" / "memory").sources[3].root == ""
    memory = rac_jax.load(tmp_path / "new").memory
    assert [memory.image(memory.rows - place).size for place in (1, 2)] == [(8, 8), (32, 32)]  # a file; a thumbnail


def test_weights_given_as_a_file_are_named_without_its_folder_and_found_in_the_weights_folder(trained, tmp_path):
    run = shutil.copytree(trained, tmp_path / "run")
    (tmp_path / "old").mkdir()
    config = workdirs.read_config(run)
    file = Path(shutil.copy(weights.resolve(config.model.encoder.weights), tmp_path / "old" / "e.pth"))
    config.model.encoder.weights, config.weights_dir = str(file), str(tmp_path / "old")
    workdirs.write_config(config, run)
    memory = manifest.read(run / "memory")
    manifest.write(run / "memory", dataclasses.replace(memory, weights=str(file)))
    file.parent.rename(tmp_path / "here")
    with pytest.raises(FileNotFoundError, match=r"e\.pth' is neither a file nor one of"):
        rac_jax.load(run)
    model = rac_jax.load(run, weights_dir=str(tmp_path / "here"))
    given = [f"--workdir={run}", f"--to={tmp_path / 'with'}", f"--weights_dir={tmp_path / 'here'}", "--with-encoder"]
    subprocess.run([sys.executable, "-m", "rac_jax.export", *given], check=True)
    assert (tmp_path / "with" / "encoder" / "e.pth").is_file()
    model.save(tmp_path / "new")
    found = workdirs.read_config(tmp_path / "new").model.encoder.weights
    assert found == manifest.read(tmp_path / "new" / "memory").weights == "e.pth"
    for path in (tmp_path / "new").rglob("*"):
        assert not path.is_file() or str(tmp_path).encode() not in path.read_bytes(), path
    image = data.load(tiny.config()).split("test").images[0]
    expected = model.predict(image)
    for moved in (rac_jax.load(tmp_path / "new", weights_dir=str(tmp_path / "here")), rac_jax.load(tmp_path / "with")):
        assert moved.predict(image) == expected


def test_the_card_has_the_tables_of_its_step_alone(trained, tmp_path):
    run = shutil.copytree(trained, tmp_path / "run")
    table = json.loads((run / "eval" / "test.json").read_text())
    (run / "eval" / "val.json").write_text(json.dumps(table | {"split": "val", "step": table["step"] - 10}))
    export.write(run, tmp_path / "new")
    text = (tmp_path / "new" / "README.md").read_text()
    assert "Accuracy in % on test, 250 images" in text and "on val" not in text
    (run / "eval" / "test.json").write_text(json.dumps(table | {"step": table["step"] - 10}))
    export.write(run, tmp_path / "other")
    assert "Accuracy" not in (tmp_path / "other" / "README.md").read_text()
