"""--mode=check, on the simulated devices."""

import re

import pytest

from configs import demo
from rac_jax.compile import check
from tests import tiny


@pytest.fixture
def config():
    c = tiny.config()
    c.model.encoder.update(name="vit_ti16", weights="", **tiny.TINY_VIT)
    return c


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(check, "INPUT_SECONDS", 0.2)
    monkeypatch.setattr(check, "STEPS", 2)


def answers(capsys):
    lines = re.split(r"\n(?=\S)", capsys.readouterr().out.strip())  # a long answer goes on in indented lines
    return {line[9:].split(":")[0]: line for line in lines}


def test_a_machine_that_can_run_the_config(config, tmp_path, capsys):
    good = check.check(config, tmp_path)
    said = answers(capsys)
    assert list(said) == [
        "devices",
        "config",
        "data",
        "weights",
        "workdir",
        "lookup",
        "memory",
        "disk",
        "steps",
        "input",
    ]
    assert "8 × cpu" in said["devices"] and "2 rows a device" in said["config"]
    assert "10 classes; train 466" in said["data"] and "from scratch" in said["weights"]
    assert "images/s" in said["steps"] and "a step eats" in said["input"]
    assert good == all(line.startswith("ok") for line in said.values())
    assert all(said[name].startswith("ok") for name in said if name != "input")  # which depends on this machine's load
    assert not list(tmp_path.iterdir())  # nothing is left behind


@pytest.mark.slow
def test_every_problem_has_a_line_and_the_other_questions_are_still_asked(config, tmp_path, capsys):
    config.data.name, config.data.root = "places_lt", str(tmp_path / "nowhere")
    config.model.base.weights, config.weights_dir = str(tmp_path / "missing.npz"), ""
    config.checkpoint.keep = 10**9
    assert not check.check(config, tmp_path)
    said = answers(capsys)
    assert said["data"].startswith("problem") and "Places_LT_train.txt" in said["data"]
    assert said["weights"].startswith("problem") and "missing.npz" in said["weights"]
    assert said["disk"].startswith("problem") and "lower config.checkpoint.keep" in said["disk"]
    assert said["memory"].startswith("ok") and said["steps"].startswith("ok")  # sizes by the data set's name


def test_a_device_without_enough_memory_names_the_fields(config, tmp_path, monkeypatch):
    found = check.Found(config, tmp_path)
    check._data(found)

    class Small:
        def memory_stats(self):
            return {"bytes_limit": 10**6}

    monkeypatch.setattr(check.jax, "local_devices", lambda: [Small()])
    with pytest.raises(check.Problem, match=r"raise config\.train\.accumulate or config\.mesh\.fsdp"):
        check._compiled(found)


@pytest.mark.parametrize("variant", ["instant", ""])
def test_training_on_keys_or_views_decodes_no_image(tmp_path, variant, monkeypatch):
    """Before, the check compared the rate of decoding with that of steps, and reported a problem."""
    monkeypatch.setattr(check.pipeline, "train_batches", lambda *_, **__: pytest.fail("images are decoded"))
    found = check.Found(demo.get_config(variant), tmp_path, step=1e-9)
    check._data(found)
    assert check._input(found) == "training decodes no image; E sees each one before the first step"


def test_without_the_data_of_a_folder_later_questions_are_not_asked(config, tmp_path, capsys):
    """Before, they answered "'train'" and named flags that another command has."""
    config.data.name, config.data.root = "folder", str(tmp_path / "nowhere")
    assert not check.check(config, tmp_path)
    said = answers(capsys)
    assert said["data"].startswith("problem") and said["memory"].startswith("problem")
    assert "when the data can be read" in said["memory"] and "--classes" not in said["memory"]
    assert not {"disk", "steps", "input"} & set(said)


def test_an_index_on_the_devices_is_compiled_and_timed(config, tmp_path):
    config.memory.index = "device"
    found = check.Found(config, tmp_path)
    check._data(found)
    said = check._compiled(found)
    assert set(found.compiled) == {"train", "device"}
    need = sum(program.arguments + program.code for program in found.compiled.values())
    need += max(program.temporaries for program in found.compiled.values())
    assert said.startswith(f"{need / 1e9:.2f} GB a device")
    assert "images/s" in check._steps(found)


def test_gpus_that_jax_does_not_use(config, tmp_path, monkeypatch):
    monkeypatch.setattr(check, "_driver", lambda: "570.1")
    with pytest.raises(check.Problem, match=r"driver 570.1 is here, but JAX computes on the CPU; `pip install"):
        check._devices(check.Found(config, tmp_path))
