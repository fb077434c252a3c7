import time

import numpy as np
import pytest

from configs import places
from rac_jax import data
from rac_jax.config import ConfigError
from rac_jax.run import Run
from tests import tiny
from tests.test_configs import images_of


@pytest.mark.parametrize("role", ["base", "encoder", "text"])
def test_missing_weights_are_named_within_seconds(role, tmp_path, monkeypatch):
    monkeypatch.setattr(data, "load", lambda config: images_of("places_lt"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    config = places.get_config()
    wanted = config.model[role].weights
    config.model.base.weights = config.model.encoder.weights = config.model.text.weights = ""
    config.model[role].weights, config.weights_dir = wanted, str(tmp_path)
    started = time.monotonic()
    with pytest.raises(FileNotFoundError, match=f"{wanted} were not found(.|\n)*download(.|\n)*{tmp_path}"):
        Run.from_config(config, tmp_path)
    assert time.monotonic() - started < 20


def test_a_base_only_model_asks_for_no_other_weights(tmp_path):
    config = tiny.config("base")
    config.model.encoder.weights = config.model.text.weights = "nowhere"
    assert Run.from_config(config, tmp_path).retriever is None


def test_an_option_that_a_model_does_not_take_is_refused(tmp_path):
    config = tiny.config("base")
    config.model.base.batch_norm = "update"
    with pytest.raises(
        ConfigError, match=r"config\.model\.base\.batch_norm .* vit_ti16 has no such option; it has .*depth"
    ):
        Run.from_config(config, tmp_path)


def test_a_batch_comes_with_what_the_memory_says_and_without_the_image_itself(tmp_path):
    parts = Run.from_config(tiny.config(), tmp_path)
    images = np.zeros((16, 32, 32, 3), np.uint8)
    ids = np.arange(16, dtype=np.int32)
    transform = data.eval_transform(parts.config)
    for i in range(16):
        images[i] = transform(parts.dataset.split("train").images[i], np.random.default_rng(0))
    batch = {"image": images, "id": ids, "label": ids, "mask": np.ones(16, bool)}
    rows = {training: np.asarray(parts.put(batch, training=training)[1]["rows"]) for training in (True, False)}
    parts.check()
    np.testing.assert_array_equal(rows[False][:, 0], ids)  # the nearest of a known image is itself
    assert not (rows[True] == ids[:, None]).any()
    np.testing.assert_array_equal(rows[True][:, :-1], rows[False][:, 1:])


def test_damaged_weights_of_b_are_noticed_before_the_memory_is_built(tmp_path):
    (tmp_path / "b.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0not a header")
    config = tiny.config(devices=1)
    config.model.base.weights = str(tmp_path / "b.safetensors")
    with pytest.raises(ValueError, match=r"b\.safetensors"):
        Run.from_config(config, tmp_path / "run")
    assert not (tmp_path / "run" / "memory").exists()
