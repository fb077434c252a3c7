"""Wrong labels: how many, in which classes, and where."""

import numpy as np
import pytest

from rac_jax.data import noise
from rac_jax.data.dataset import ArrayImages, Dataset, Split
from rac_jax.memory import sources

LABELS = np.repeat(np.arange(5), (40, 30, 20, 10, 10)).astype(np.int32)


def made():
    train = Split("train", ArrayImages("train", np.zeros((len(LABELS), 2, 2, 3), np.uint8)), LABELS)
    return Dataset("made", tuple("abcde"), tuple("ABCDE"), {"train": train})


def test_a_share_of_each_class_is_wrong_and_every_class_keeps_its_number():
    wrong = noise.exchanged(LABELS, 0.3, seed=0)
    assert wrong.dtype == np.int32
    np.testing.assert_array_equal(np.bincount(wrong), np.bincount(LABELS))
    changed = np.bincount(LABELS[wrong != LABELS], minlength=5)
    assert changed.tolist() == [12, 9, 6, 3, 3]
    np.testing.assert_array_equal(wrong, noise.exchanged(LABELS, 0.3, seed=0))
    assert (wrong != noise.exchanged(LABELS, 0.3, seed=1)).any()


def test_too_few_classes_are_an_error():
    with pytest.raises(ValueError, match=r"config\.data\.label_noise is 0\.5: too few images of too few classes"):
        noise.exchanged(np.array([0] * 10 + [1], np.int32), 0.5, seed=0)


@pytest.mark.parametrize("where", ["training", "memory", "both"])
def test_the_loss_the_memory_or_both_see_them(where):
    clean = made()
    labels = clean.split("train").labels
    noisy = noise.of(clean, share=0.5, where=where, seed=1)
    wrong = noise.exchanged(labels, 0.5, seed=1)
    content = sources.of_split(noisy, "train")
    inside = content.columns["label"].to_numpy()
    np.testing.assert_array_equal(noisy.split("train").labels, labels if where == "memory" else wrong)
    np.testing.assert_array_equal(inside, labels if where == "training" else wrong)
    texts = content.columns["text"].to_pylist()
    assert texts == [clean.class_texts[label] for label in inside]
    fingerprints = {noise.of(clean, share=0.5, where=one, seed=1).fingerprint("train") for one in ("memory", "both")}
    assert len(fingerprints | {clean.fingerprint("train")}) == 3
    some = noisy.split("train").select(np.array([3, 1]))
    if where == "both":
        assert some.memory_labels is None
    else:
        np.testing.assert_array_equal(some.memory_labels, inside[[3, 1]])


def test_no_noise_is_the_same_data_set():
    clean = made()
    assert noise.of(clean, share=0.0, where="both", seed=0) is clean
