"""The text head starts as a discriminant of what T makes of the neighbours of training images."""

import numpy as np
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from rac_jax import evaluate, optimizer, train
from rac_jax.run import Run
from rac_jax.start import text_head
from tests import tiny


def clouds(each: int) -> tuple[np.ndarray, np.ndarray]:
    """Features of 5 classes around a common mean, with the same oblong covariance, and their labels."""
    random = np.random.default_rng(0)
    means, shape = 3 + random.normal(0, 1, (5, 8)), random.normal(0, 0.6, (8, 8))
    labels = np.repeat(np.arange(5), each)
    return means[labels] + random.normal(0, 1, (5 * each, 8)) @ shape, labels


def test_the_discriminant_is_that_of_scikit_learn():
    features, labels = clouds(40)
    reference = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=text_head.SHRUNK, priors=np.full(5, 0.2))
    expected = reference.fit(features, labels).decision_function(features)
    kernel, bias = text_head.discriminant(features, labels, 5)
    logits = features @ kernel + bias
    np.testing.assert_allclose(logits, expected - expected.mean(axis=1, keepdims=True), atol=1e-4)


def test_a_class_with_one_image_and_features_without_spread():
    kernel, bias = text_head.discriminant(np.eye(3), np.array([0, 1, 1]), 2)
    assert np.isfinite(kernel).all() and np.isfinite(bias).all()
    kernel, bias = text_head.discriminant(np.ones((3, 4)), np.array([0, 1, 2]), 3)
    np.testing.assert_array_equal(kernel, 0)
    np.testing.assert_array_equal(bias, 0)


def test_a_class_without_images_has_the_lowest_bias():
    features, labels = clouds(40)
    kernel, bias = text_head.discriminant(features, labels, 6)
    expected_kernel, expected_bias = text_head.discriminant(features, labels, 5)
    np.testing.assert_allclose(kernel, np.pad(expected_kernel, ((0, 0), (0, 1))), atol=1e-5)
    np.testing.assert_allclose(bias, np.append(expected_bias, expected_bias.min()), atol=1e-5)


def test_logits_of_few_images_are_made_less_certain():
    random, labels = np.random.default_rng(0), np.repeat(np.arange(14), 20)
    means = 0.3 * random.normal(0, 1, (14, 384))
    features, fresh = (random.normal(0, 1, (280, 384)) + means[labels] for _ in range(2))
    kernel, bias = text_head.discriminant(features, labels, 14)
    factor = text_head.best_factor(features, labels, 14)
    logits = fresh @ kernel + bias
    best = max(text_head.FACTORS, key=lambda f: text_head._likelihood(f * logits, labels))
    assert factor < 1 and 0.5 <= factor / best <= 2


def test_some_images_of_each_class_are_read():
    labels = np.repeat([1, 0, 2], [500, 3, text_head.EACH])
    chosen = text_head.some_of_each(labels)
    assert np.bincount(labels[chosen]).tolist() == [3, text_head.EACH, text_head.EACH]
    assert (np.diff(chosen) > 0).all() and chosen[0] == 0 and chosen[-1] == len(labels) - 1


def test_text_answers_before_training(tmp_path):
    """T at random, on 8 devices: the text voice is as good as the nearest row (72 %), and right by chance otherwise."""
    right = {}
    for start in ("random", "memory"):
        config = tiny.config("text")
        config.model.text_start = start
        config.memory.dir = str(tmp_path / "memory")
        run = Run.from_config(config, tmp_path / start)
        state = train.initial_state(run, optimizer.from_config(config, len(run.dataset.split("train"))))
        counts = evaluate.count(run, state.params, state.stats, "test")["text"]
        right[start] = counts.correct.sum() / counts.seen.sum()
    assert right["random"] < 0.2 < 0.5 < right["memory"]
