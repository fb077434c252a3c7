import json
import os
import subprocess
import sys

import pytest

from rac_jax import config as configs
from rac_jax.runtime import workdirs


def claim(config, workdir):
    with workdirs.claim(config, workdir):
        workdirs.write_config(config, workdir)


def test_a_folder_is_claimed_once_and_by_one_config(tmp_path):
    config = configs.default()
    claim(config, tmp_path / "run")
    assert json.loads((tmp_path / "run" / "config.json").read_text())["memory"]["k"] == 30
    config.train.steps = 7  # may change
    workdirs.check(config, tmp_path / "run")
    assert json.loads((tmp_path / "run" / "config.json").read_text())["train"]["steps"] == 0
    claim(config, tmp_path / "run")
    assert json.loads((tmp_path / "run" / "config.json").read_text())["train"]["steps"] == 7
    config.memory.k = 10
    with pytest.raises(configs.ConfigError, match=r"memory\.k: 30 there, 10 now"):
        claim(config, tmp_path / "run")


def test_a_run_from_before_a_field_existed_has_its_default(tmp_path):
    config = configs.default()
    claim(config, tmp_path)
    older = json.loads((tmp_path / "config.json").read_text())
    del older["memory"]["exclude"]
    (tmp_path / "config.json").write_text(json.dumps(older))
    claim(config, tmp_path)
    config.memory.exclude = "none"
    (tmp_path / "config.json").write_text(json.dumps(older))
    with pytest.raises(configs.ConfigError, match=r"memory\.exclude: 'id' there, 'none' now"):
        claim(config, tmp_path)


HOLD = """
import sys, pathlib
from rac_jax import config
from rac_jax.runtime import workdirs
with workdirs.claim(config.default(), pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_folder_in_use_is_refused_until_its_process_is_gone(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path],
        env={**os.environ, "PYTHONPATH": "."}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as holder:  # fmt: skip
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(RuntimeError, match=rf"is in use by process {holder.pid} on "):
            claim(configs.default(), tmp_path)
        holder.kill()
    claim(configs.default(), tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", "\x00", '{"seed": 1,'])
def test_a_damaged_config_is_named(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    for read in (workdirs.read_config, lambda workdir: workdirs.check(configs.default(), workdir)):
        with pytest.raises(configs.ConfigError, match=r"config\.json is damaged"):
            read(tmp_path)


@pytest.mark.parametrize("text", ['{"sed": 1}', '{"seed": "one"}', '{"train": 3}', '{"seed": {"a": 1}}'])
def test_a_config_of_another_version_is_named(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(configs.ConfigError, match=r"config\.json is not a config of this version"):
        workdirs.read_config(tmp_path)
