"""E is trained for the data, becomes the mean of two sets of weights, and the memory is made with it."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from rac_jax import evaluate, rules, train, weights
from rac_jax.calibration import coverage, new_classes, on_keys
from rac_jax.config import ConfigError
from rac_jax.export import folder as export
from rac_jax.memory import store
from rac_jax.reproduce import edit
from rac_jax.retrieval import familiarity
from rac_jax.run import ENCODER, Run
from rac_jax.start import tuning
from tests import tiny

SHARE = 0.25


def config(share: float = SHARE):
    c = tiny.config()
    c.model.voices, c.model.fusion = "vote+prototype", "sum"
    c.model.base.update(c.model.encoder.to_dict())
    c.memory.lookup = "cached"
    c.train.steps, c.train.calibrate_new = 2, False
    c.tune.update(share=share, frozen=r"base\.(stem|blocks\.[01]\.)", views=2, epochs=0.15, batch_size=32)  # 2 steps
    return c


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("tuned")
    train.train(config(), workdir)
    return workdir


def test_e_is_the_mean_of_its_published_and_its_trained_weights(tuned):
    first = tuning.stage(config())
    run, params, _, step = evaluate.restore(first, tuned / tuning.FOLDER, None)
    published = weights.from_config(first, "encoder", run.model.base)
    mean = np.load(tuned / ENCODER / tuning.FILE)
    kernel = "blocks.3.project.kernel"
    trained = np.asarray(params["base"]["blocks"][3]["project"]["kernel"])
    assert step == 2 and np.abs(trained - published[kernel]).max() > 1e-4
    expected = 0.75 * np.asarray(published[kernel]) + 0.25 * trained
    np.testing.assert_allclose(mean[kernel], expected, rtol=1e-6)
    frozen = "blocks.0.project.kernel"
    np.testing.assert_array_equal(mean[frozen], np.asarray(published[frozen], np.float32))
    assert set(mean) == set(published)


def test_the_memory_is_made_with_it(tuned):
    run, *_ = evaluate.restore(config(), tuned, None)
    found, first = store.read(tuned / "memory"), store.read(tuned / tuning.FOLDER / "memory")
    assert found.manifest.recipe["encoder"]["weights"] == weights.digest(tuned / ENCODER / tuning.FILE)
    assert first.manifest.recipe["encoder"]["weights"] == weights.digest(weights.resolve("efficientnet_lite0:imagenet"))
    assert np.abs(np.asarray(found.keys) - np.asarray(first.keys)).max() > 1e-4
    pixels = np.random.default_rng(0).integers(0, 255, (8, 32, 32, 3), np.uint8)
    other = Run.from_config(config(share=0.0), tuned / "other").retriever.encoder
    keys, published = (np.asarray(e.encode(e.parameters, pixels)) for e in (run.retriever.encoder, other))
    assert np.abs(keys - published).max() > 1e-3


def test_training_images_do_not_stand_for_new_ones(tuned):
    """E has seen them, and all classes: neither sets of labels nor an offset are found with their keys."""
    run, *_ = evaluate.restore(config(), tuned, None, split="test")
    assert new_classes.offset(run) == 0.0 and not on_keys.possible(run)
    assert on_keys.possible(dataclasses.replace(run, config=config(share=0.0)))


def test_it_is_trained_once_and_the_run_can_be_moved(tuned, tmp_path):
    before = json.loads((tuned / "eval" / "test.json").read_text())
    file = tuned / ENCODER / tuning.FILE
    written = file.stat().st_mtime_ns
    train.train(config(), tuned)
    assert file.stat().st_mtime_ns == written
    export.write(tuned, tmp_path / "moved")
    assert (tmp_path / "moved" / ENCODER / tuning.FILE).read_bytes() == file.read_bytes()
    evaluate.evaluate_checkpoint(config(), tmp_path / "moved", step=None, split="test")
    after = json.loads((tmp_path / "moved" / "eval" / "test.json").read_text())
    assert after["voices"] == before["voices"] and list(after["voices"]) == ["rac", "vote", "prototype"]


def test_an_interrupted_training_of_e_continues_to_the_same_file(tuned, tmp_path):
    first = tuning.stage(config())
    first.train.steps = 1
    train.train(first, tmp_path / tuning.FOLDER, evaluated=False)
    (tmp_path / f"{ENCODER}.writing-1").mkdir()  # killed while E was written
    (tmp_path / f"{ENCODER}.writing-1" / tuning.FILE).write_bytes(b"half")
    train.train(config(), tmp_path)
    mean, expected = (np.load(folder / ENCODER / tuning.FILE) for folder in (tmp_path, tuned))
    for path in expected:
        np.testing.assert_array_equal(mean[path], expected[path])
    evaluate.evaluate_checkpoint(config(), tmp_path, step=None, split="val")
    assert list((tmp_path / ENCODER).iterdir()) == [tmp_path / ENCODER / tuning.FILE]


def test_familiarity_needs_images_that_e_has_not_seen(tuned, tmp_path):
    moved = shutil.copytree(tuned, tmp_path / "moved", ignore=shutil.ignore_patterns(familiarity.FILE))
    for workdir, known in ((tuned, True), (moved, False)):
        run, *_ = evaluate.restore(config(), workdir, None)
        assert bool(len(run.retriever.usual_nearness)) == known


def test_the_training_of_e_is_whole_and_takes_the_runs_k():
    c = config()
    c.memory.k, c.train.steps, c.train.accumulate, c.model.text_start = 7, 3, 4, "memory"
    first = tuning.checked_stage(c)
    assert (first.memory.k, first.train.steps, first.train.accumulate) == (7, 0, 1)
    assert first.optim.frozen == c.tune.frozen and first.train.views == 2 and first.optim.warmup_epochs == 0.15


@pytest.mark.parametrize(
    "change, error",
    [
        ({"frozen": ""}, r"config\.tune\.views is 2, but config\.tune\.frozen='' does not freeze efficientnet_lite0"),
        ({"batch_size": 4, "views": 0}, None),
    ],
)
def test_errors_name_the_fields_of_tune(change, error):
    c = config()
    c.tune.update(change)
    if error is None:
        tuning.checked_stage(c)
    else:
        with pytest.raises(ConfigError, match=rf"the training of E \(config\.tune\.share\): {error}"):
            tuning.checked_stage(c)


def test_a_memory_of_another_e_is_noticed_before_e_is_trained(tuned, tmp_path):
    c = config()
    c.memory.dir = str(tuned / tuning.FOLDER / "memory")
    with pytest.raises(ValueError, match=r"holds a memory of another E; .*use another --config\.memory\.dir, or none"):
        train.train(c, tmp_path)
    assert not (tmp_path / tuning.FOLDER).exists()


@pytest.mark.slow
def test_edits_are_measured_as_those_of_a_run(tmp_path):
    """Neither an offset nor sets of labels are found on images that E has seen."""
    c = config()
    c.train.update(steps=0, epochs=1.0, calibrate_new=True)
    c.data.keep_classes = 0.8
    figures = edit.measure(c, tmp_path)["figures"]
    assert figures["offset"] == 0.0 and figures["new classes"] > 0 and not (tmp_path / coverage.FILE).exists()


def test_without_a_share_nothing_is_trained(tmp_path):
    plain = config(share=0.0)
    assert tuning.with_tuned_encoder(plain, tmp_path, train.train) is plain and not list(tmp_path.iterdir())


@pytest.mark.parametrize("change", [{"model.voices": "base+vote"}, {"model.encoder.weights": ""}])
def test_what_cannot_be_tuned_is_refused(change):
    c = config()
    c.update_from_flattened_dict(change)
    with pytest.raises(ConfigError, match=r"config.tune.share is 0.25; it must be 0 unless E has weights"):
        rules.validate(c, devices=8)
