"""Minutes of a run: E's part does not depend on which run computed the keys."""

import dataclasses
import time

import numpy as np
import pytest

from configs import digits
from rac_jax.data.record import Record
from rac_jax.memory import kept_keys
from rac_jax.reproduce import times
from rac_jax.runtime import files


@pytest.fixture
def run(tmp_path):
    """A run with cached lookups that was trained on 30 images and evaluated on 10."""
    config = digits.get_config()
    config.memory.lookup = "cached"
    workdir = tmp_path / "run"
    splits = {name: {"images": number, "fingerprint": ""} for name, number in (("train", 30), ("test", 10))}
    files.write_json(workdir / "data.json", dataclasses.asdict(Record("digits", "", [], [], [], splits)))
    return config, tmp_path / "keys", workdir


def encode(keys, images, seconds):
    store = kept_keys.Store(keys / "by_image-x")
    store.folder.mkdir(parents=True, exist_ok=True)
    store.add([b"%d" % number for number in images], np.zeros((len(images), 2), np.float32), seconds)


def test_every_run_is_charged_for_the_keys_that_it_needs(run, monkeypatch):
    config, keys, workdir = run
    assert times.read(config, keys, workdir) == {}
    clock = iter([100.0, 400.0, 1000.0, 1060.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    with times.measured(keys, workdir):
        encode(keys, range(20), 120.0)
    found = times.read(config, keys, workdir)
    assert found["of these, E"] == pytest.approx(40 * 6 / 60)
    assert found["minutes"] == pytest.approx((300 - 120) / 60 + 4)
    with pytest.raises(KeyboardInterrupt), times.measured(keys, workdir):  # interrupted and continued
        raise KeyboardInterrupt
    assert times.read(config, keys, workdir)["minutes"] == pytest.approx((300 - 120 + 60) / 60 + 4)


def test_a_trained_e_sees_the_training_images_twice(run):
    config, keys, workdir = run
    encode(keys, range(20), 120.0)
    with times.measured(keys, workdir):
        pass
    config.tune.share = 0.5
    assert times.read(config, keys, workdir)["of these, E"] == pytest.approx(70 * 6 / 60)


def test_a_run_without_e_is_charged_for_none(run):
    _, keys, workdir = run
    config = digits.get_config("base")
    encode(keys, range(20), 120.0)
    with times.measured(keys, workdir):
        pass
    assert times.read(config, keys, workdir)["of these, E"] == 0
