import json

import pytest

from rac_jax import config as configs
from rac_jax import workdirs


def test_a_folder_is_claimed_once_and_by_one_config(tmp_path):
    config = configs.default()
    workdirs.claim(config, tmp_path / "run")
    assert json.loads((tmp_path / "run" / "config.json").read_text())["memory"]["k"] == 30
    config.train.steps = 7  # may change
    workdirs.check(config, tmp_path / "run")
    assert json.loads((tmp_path / "run" / "config.json").read_text())["train"]["steps"] == 0
    workdirs.claim(config, tmp_path / "run")
    assert json.loads((tmp_path / "run" / "config.json").read_text())["train"]["steps"] == 7
    config.memory.k = 10
    with pytest.raises(configs.ConfigError, match=r"memory\.k: 30 there, 10 now"):
        workdirs.claim(config, tmp_path / "run")
