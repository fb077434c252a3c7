"""python -m rac_jax.memory, as a user meets it."""

import os
import shutil
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from absl import app
from absl.testing import flagsaver
from PIL import Image

from configs import digits
from rac_jax import data
from rac_jax.memory import __main__ as commands
from rac_jax.memory import index, manifest, store
from rac_jax.report import pictures
from rac_jax.runtime import workdirs

ROOT = Path(__file__).parents[2]


@pytest.fixture
def command(monkeypatch, capsys):
    """Runs a command with flags and returns what it prints."""

    def run(name, *arguments, config=None, **values):
        monkeypatch.setattr(commands, "CONFIG", types.SimpleNamespace(value=config))
        with flagsaver.flagsaver(**values):
            commands.main(["memory", name, *arguments])
        return capsys.readouterr().out

    return run


@pytest.fixture
def config():
    c = digits.get_config()
    c.data.image_size = 16
    c.model.encoder.name, c.model.encoder.weights = "vit_ti16", ""
    c.model.encoder.update(width=32, depth=1, heads=2, patch=8)
    c.mesh.data = 1
    return c


@pytest.fixture
def pets(tmp_path):
    for number, name in enumerate(("cat/1", "cat/2", "sea_lion/1")):
        path = tmp_path / "pets" / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(number).integers(0, 255, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(noise).save(path)
    return tmp_path / "pets"


def test_a_memory_from_its_building_to_its_compaction(command, config, pets, tmp_path):
    folder = str(tmp_path / "m")
    printed = command("build", config=config, memory=folder)
    assert "train" in printed and "466" in printed and "enabled" in printed
    printed = command("add", memory=folder, source="pets", **{"from": f"folder:{pets}"})
    assert "pets" in printed and f"folder:{pets}" in printed
    assert [line.split()[:3] for line in printed.splitlines()[1:]] == [["train", "466", "10"], ["pets", "3", "2"]]
    rows = [line.split() for line in command("classes", memory=folder).splitlines()]
    assert rows[0] == ["class", "enabled", "rows", "train", "pets"]
    assert rows[-3:] == [["cat", "2", "0", "2"], ["sea_lion", "1", "0", "1"], ["(no", "class)", "0", "0", "0"]]
    assert "12 in 469 of the enabled rows" in command("info", memory=folder)
    assert command("add", memory=folder, source="pets", **{"from": f"folder:{pets}"}) == printed  # done is done

    found = command("search", str(pets / "sea_lion" / "1.png"), memory=folder, k=3, out=str(tmp_path / "found.png"))
    nearest = found.splitlines()[1].split()
    assert nearest == ["1.0000", "sea_lion", "sea", "lion", "pets", "sea_lion/1.png"]
    with Image.open(tmp_path / "found.png") as picture:
        assert picture.size[0] == 4 * 102  # the image and three neighbours
        assert {picture.getpixel((102 * i, 0)) for i in range(4)} == {pictures.NEUTRAL}  # its class is not known

    command("disable", memory=folder, source="train")
    assert "2 in 3 of the enabled rows" in command("info", memory=folder)
    found = command("search", str(pets / "cat" / "1.png"), memory=folder, k=3)
    assert sorted(line.split()[-1] for line in found.splitlines()[1:]) == ["cat/1.png", "cat/2.png", "sea_lion/1.png"]
    with pytest.raises(manifest.BadMemory, match="--k=4, but 3 rows are enabled"):
        command("search", str(pets / "cat" / "1.png"), memory=folder, k=4)
    command("enable", memory=folder, source="train")
    assert "469 enabled of 469" in command("info", memory=folder)

    with pytest.raises(manifest.BadMemory, match="there is a source 'train' already; choose another name"):
        command("rename", memory=folder, source="pets", to="train")
    printed = command("rename", memory=folder, source="pets", to="animals")
    assert [line.split()[:3] for line in printed.splitlines()[1:]] == [["train", "466", "10"], ["animals", "3", "2"]]
    found = command("search", str(pets / "sea_lion" / "1.png"), memory=folder, k=3)
    assert found.splitlines()[1].split() == ["1.0000", "sea_lion", "sea", "lion", "animals", "sea_lion/1.png"]

    command("remove", memory=folder, source="animals")
    assert "466 enabled of 469" in command("info", memory=folder)
    assert command("compact", memory=folder) == "3 rows were deleted\n"
    assert "466 enabled of 466" in command("info", memory=folder)
    printed = command("check", memory=folder, queries=50)
    assert "466 rows: all checksums are right" in printed and "recall@10 " in printed


def test_keys_made_elsewhere(command, config, tmp_path):
    folder = str(tmp_path / "m")
    np.save(tmp_path / "k.npy", np.eye(5, 32, dtype=np.float32))
    (tmp_path / "t.txt").write_text("one\ntwo\nthree\nfour\nfive\n")
    arguments = {"memory": folder, "source": "mine", "from": f"keys:{tmp_path / 'k.npy'}", "texts": f"{tmp_path}/t.txt"}
    with pytest.raises(FileNotFoundError, match="to make one, name a --config"):
        command("add", **arguments)
    command("add", config=config, **arguments)  # a memory of its own, for this E
    memory = store.read(tmp_path / "m")
    np.testing.assert_array_equal(memory.keys, np.eye(5, 32))
    assert list(memory.texts) == ["one", "two", "three", "four", "five"]
    rows, _ = index.search(memory.index, np.eye(5, 32, dtype=np.float32), 1, 64)
    assert rows[:, 0].tolist() == [0, 1, 2, 3, 4]
    np.save(tmp_path / "k.npy", np.eye(5, 31, dtype=np.float32))
    with pytest.raises(manifest.BadMemory, match="keys of 31 numbers; this memory's have 32"):
        command("add", **{**arguments, "source": "narrow"})


def test_the_data_set_of_the_run_is_divided_as_the_run_did(command, config, tmp_path, caplog):
    config.data.seed = 3
    own = data.load(config)
    config.data.seed = 0
    other = data.load(config)
    assert own.fingerprint("val") != other.fingerprint("val")
    config.data.seed = 3
    folder = tmp_path / "run" / "memory"
    command("build", config=config, memory=str(folder))
    workdirs.write_config(config, tmp_path / "run")
    arguments = {"from": "digits", "split": "val"}
    command("add", memory=str(folder), source="val", **arguments)
    train, val = manifest.read(folder).sources
    assert (train.fingerprint, val.fingerprint) == (own.fingerprint("train"), own.fingerprint("val"))
    assert "data.seed" not in caplog.text
    elsewhere = tmp_path / "alone" / "memory"
    shutil.copytree(folder, elsewhere)
    command("add", memory=str(elsewhere), source="again", **arguments)  # no run is beside it
    assert manifest.read(elsewhere).sources[2].fingerprint == other.fingerprint("val")
    assert "digits is divided into splits with data.seed=0; if the run did it with another, give" in caplog.text


def written_table(pets):
    paths = [str(path.relative_to(pets)) for path in sorted(pets.rglob("*.png"))]
    (pets / "t.csv").write_text("\n".join(["path,label", *(f"{path},{path[:3]}" for path in paths)]))
    return pets / "t.csv"


@pytest.mark.parametrize("kind", ["folder", "table"])
def test_a_split_of_the_runs_own_folder_is_what_it_was_in_the_run(kind, command, config, pets, tmp_path):
    for name in ("cat", "sea_lion"):
        for number in range(3, 13):
            shutil.copy(pets / "cat" / "1.png", pets / name / f"{number}.png")
    place = pets if kind == "folder" else written_table(pets)
    config.data.update(name=f"{kind}:{place}", seed=3, val_share=0.2, test_share=0.4)
    own, folder = data.load(config), tmp_path / "run" / "memory"
    command("build", config=config, memory=str(folder))
    workdirs.write_config(config, tmp_path / "run")
    command("add", memory=str(folder), source="more", split="val", **{"from": f"{kind}:{place}"})
    memory = store.read(folder)
    assert memory.manifest.sources[1].fingerprint == own.fingerprint("val")
    assert list(memory.images)[-len(own.split("val")) :] == own.split("val").images.references()
    assert 0 < len(own.split("val")) < len(own.split("test"))
    elsewhere = tmp_path / "alone" / "memory"
    shutil.copytree(folder, elsewhere)
    with pytest.raises(
        ValueError, match=rf"--split=val: {kind}:.* has no splits, and no run beside the memory divided"
    ):
        command("add", memory=str(elsewhere), source="again", split="val", **{"from": f"{kind}:{place}"})
    command("add", memory=str(elsewhere), source="again", **{"from": f"{kind}:{place}"})
    assert manifest.read(elsewhere).sources[2].rows == 23


def test_long_captions_are_shortened(command, config, tmp_path):
    np.save(tmp_path / "k.npy", np.eye(2, 32, dtype=np.float32))
    (tmp_path / "t.jsonl").write_text('{"caption": "word\\n' + 99 * "long " + '"}\n{"caption": "short"}')
    arguments = {"memory": str(tmp_path / "m"), "config": config}
    command("add", **arguments, source="x", texts=f"{tmp_path}/t.jsonl", **{"from": f"keys:{tmp_path}/k.npy"})
    Image.new("RGB", (16, 16)).save(tmp_path / "q.png")
    printed = command("search", str(tmp_path / "q.png"), **arguments, k=2).splitlines()
    assert len(printed) == 3 and max(map(len, printed[1:])) < 100
    assert any("–  word long long" in line and "…" in line for line in printed)  # it has no label


def test_search_of_a_missing_file_and_a_picture_of_an_unknown_kind(command, config, tmp_path):
    np.save(tmp_path / "k.npy", np.eye(2, 32, dtype=np.float32))
    (tmp_path / "t.txt").write_text("one\ntwo\n")
    arguments = {"memory": str(tmp_path / "m"), "config": config}
    command("add", **arguments, source="x", texts=f"{tmp_path}/t.txt", **{"from": f"keys:{tmp_path}/k.npy"})
    with pytest.raises(ValueError, match=r"none\.png: cannot be read \(No such file"):
        command("search", str(tmp_path / "none.png"), **arguments, k=1)
    with pytest.raises(app.UsageError, match=r"--out=a\.xyz: the name of a picture ends in \.png"):
        command("search", str(tmp_path / "none.png"), **arguments, k=1, out="a.xyz")


def test_the_config_is_checked_for_all_devices_and_its_on_bad_image_stays(config, monkeypatch):
    config.mesh.data, config.mesh.fsdp, config.data.on_bad_image = -1, 8, "skip"
    monkeypatch.setattr(commands, "CONFIG", types.SimpleNamespace(value=config))
    assert commands._config(Path("nowhere")).data.on_bad_image == "skip"
    config.data.on_bad_image = "error"
    with flagsaver.flagsaver(skip_bad=True):
        assert commands._config(Path("nowhere")).data.on_bad_image == "skip"


def test_another_encoder_is_refused(command, config, pets, tmp_path):
    command("build", config=config, memory=str(tmp_path / "m"))
    config.model.encoder.update(width=32, depth=2, heads=2, patch=8)
    with pytest.raises(manifest.BadMemory, match=r"encoder\.options\.depth: 1 there, 2 wanted"):
        command("add", config=config, memory=str(tmp_path / "m"), source="pets", **{"from": f"folder:{pets}"})


def test_check_says_what_is_damaged(command, memory, capsys):
    (path,) = memory.folder.glob("index-*.faiss")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(SystemExit, match=rf"error: .*{path.name} is damaged \(checksum\)"):
        command("check", memory=str(memory.folder))


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["list", "--memory=nowhere"], "error: there is no memory in nowhere"),
        (["lst", "--memory=nowhere"], "'lst' is not a command; there are build, add, remove"),
        (["remove"], "name the memory's folder: --memory=DIR"),
    ],
    ids=["no memory", "no command", "no folder"],
)
def test_mistakes_get_one_clear_message_and_no_stack_trace(arguments, message):
    done = subprocess.run(
        [sys.executable, "-m", "rac_jax.memory", *arguments],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert message in done.stderr + done.stdout
    assert "Traceback" not in done.stderr
