from types import SimpleNamespace

import numpy as np
import pytest

from rac_jax import config as configs
from rac_jax.calibration import new_classes, on_keys
from rac_jax.models.rac import VoiceSettings


@pytest.fixture
def made_run(monkeypatch):
    """A run on keys of these classes, which are near each other, with fields of its config and settings changed."""

    def make(labels, fields=(), **settings):
        config, random = configs.default(), np.random.default_rng(0)
        configs.instant(config)
        config.memory.k, config.train.epochs, config.optim.learning_rate = 3, 1.0, 0.5
        config.update_from_flattened_dict(dict(fields))
        labels = np.asarray(labels, np.int32)
        keys = np.eye(8)[labels] + 0.35 * random.normal(size=(len(labels), 8))
        keys = (keys / np.linalg.norm(keys, axis=1, keepdims=True)).astype(np.float32)
        monkeypatch.setattr(new_classes, "training_rows", lambda run: on_keys.Rows(keys, labels))
        settings = VoiceSettings(("vote", "prototype"), "sum", (0.75, 1.0), **settings)
        model, classes = SimpleNamespace(output="rac", settings=settings), SimpleNamespace(trained=labels.max() + 1)
        return SimpleNamespace(config=config, model=model, classes=classes, retriever=object())

    return make


def test_the_offset_is_that_of_the_voices_before_their_sharpness(made_run):
    labels = np.repeat(np.arange(6), 20)
    plain = new_classes.offset(made_run(labels))
    assert new_classes.offset(made_run(labels, sharpness=3.0)) == plain == 1.875  # −3.25 with the sharpness


@pytest.mark.parametrize("pattern", [r"(base|text)\.", r"base\.stem", r"prototype\.", "stem"])
def test_what_is_frozen_in_the_run_need_not_be_among_the_prototypes(pattern, made_run):
    labels = np.repeat(np.arange(6), 20)
    found = new_classes.offset(made_run(labels, {"optim.frozen": pattern}))
    assert (found == new_classes.offset(made_run(labels))) == ("prototype" not in pattern)


def test_folds_without_held_out_images_of_both_kinds_say_nothing(made_run):
    """Only class 0 has two images. Where it is left out, no trained class is held out, and the other way round."""
    assert new_classes.offset(made_run([0, 0, 1, 2])) == 0.0


def test_the_offset_with_the_best_mean_over_classes_is_chosen():
    logits = np.array([[2.0, 0.0, 3.0]] * 4 + [[0.0, 2.0, 3.0]] + [[0.0, 0.0, 1.5]] * 2)  # class 2 is new
    labels = np.array([0, 0, 0, 0, 1, 2, 2])
    found = new_classes.best(*new_classes.accuracies(logits, labels, trained=2))
    assert -1.5 < found < -1.0  # below −1 the trained classes win, above −1.5 the new one keeps its images
    right = (logits + found * np.array([0, 0, 1])).argmax(axis=1) == labels
    assert right.all()


def test_the_trained_classes_lose_little():
    logits = np.array([[1.0, 0.0, 0.5 + number] for number in range(4)] + [[0.0, 0.0, 0.0]] * 4)  # class 2 is new
    labels = np.array([0] * 4 + [2] * 4)
    scores, lost = new_classes.accuracies(logits, labels, trained=2)
    np.testing.assert_allclose(lost[new_classes.OFFSETS == 0], 0.75)  # the new class takes three images of class 0
    np.testing.assert_allclose(scores[new_classes.OFFSETS == 0.25], (0.25 + 1) / 2)
    found = new_classes.best(scores, lost)
    assert found == np.mean(new_classes.OFFSETS[lost == 0])
    assert found < new_classes.OFFSETS[scores.argmax()]  # which is better for all classes together


def test_some_images_of_each_class_are_held_out_and_one_is_left():
    labels = np.array([0] * 10 + [1] * 2 + [2])
    held = new_classes._held_out(labels, np.random.default_rng(0))
    assert [int(held[labels == label].sum()) for label in range(3)] == [2, 1, 0]


@pytest.mark.parametrize(
    "output, speaking, metric, said",
    [
        ("rac", ("vote", "prototype"), "l2", True),
        ("prototype", ("prototype",), "cosine", True),
        ("rac", ("base", "text"), "cosine", False),  # they never answer new classes
    ],
)
def test_runs_whose_new_classes_get_no_offset_say_so(output, speaking, metric, said, caplog):
    model = SimpleNamespace(output=output, settings=SimpleNamespace(speaking=speaking))
    config = SimpleNamespace(memory=SimpleNamespace(metric=metric), tune=SimpleNamespace(share=0.0))
    assert new_classes.offset(SimpleNamespace(model=model, config=config, retriever=object())) == 0.0
    assert ("the offset of new classes is 0: it needs several voices" in caplog.text) == said
