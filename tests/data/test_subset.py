"""A part of the data: which images and classes stay, and under which labels."""

import numpy as np
import pytest

from rac_jax import data
from rac_jax.data import long_tail, subset
from rac_jax.data.dataset import ArrayImages, Dataset, Split
from tests import tiny

LABELS = np.repeat(np.arange(4), (8, 4, 2, 1)).astype(np.int32)


def made():
    """Four classes; each pixel holds the label of its image."""

    def split(name, labels):
        pixels = np.broadcast_to(labels[:, None, None, None], (len(labels), 2, 2, 3)).astype(np.uint8)
        return Split(name, ArrayImages(name, pixels), labels)

    splits = {"train": split("train", LABELS), "test": split("test", np.arange(4, dtype=np.int32))}
    return Dataset("made", ("a", "b", "c", "d"), ("A", "B", "C", "D"), splits)


def test_a_share_is_drawn_from_every_class_and_is_part_of_a_larger_one():
    before = np.zeros(len(LABELS), bool)
    for share, counts in ((0.25, [2, 1, 1, 1]), (0.5, [4, 2, 1, 1]), (0.75, [6, 3, 2, 1]), (1.0, [8, 4, 2, 1])):
        kept = subset.kept_images(LABELS, share, seed=3)
        assert np.bincount(LABELS[kept]).tolist() == counts
        assert not (before & ~kept).any()
        before = kept
    other = subset.kept_images(LABELS, 0.5, seed=4)
    assert (other != subset.kept_images(LABELS, 0.5, seed=3)).any()


def test_only_training_images_are_left_out_with_a_share():
    found = subset.of(made(), share=0.5, classes=1.0, seed=0)
    assert found.class_names == ("a", "b", "c", "d") and found.class_counts.tolist() == [4, 2, 1, 1]
    assert len(found.split("test")) == 4
    for position, label in enumerate(found.split("train").labels):
        assert (found.split("train").images[position] == label).all()


def test_labels_follow_the_names_of_the_classes_that_stay():
    found = subset.of(made(), share=1.0, classes=0.5, seed=0)
    kept = subset.kept_classes(4, 0.5, seed=0)
    assert found.num_classes == 2 and found.class_names == tuple("abcd"[label] for label in kept)
    assert found.class_texts == tuple("ABCD"[label] for label in kept)
    for split in found.splits.values():
        assert len(split) and set(split.labels) == {0, 1} and split.labels.dtype == np.int32
        for position, label in enumerate(split.labels):
            assert (split.images[position] == kept[label]).all()


def test_everything_is_the_data_set_itself():
    dataset = made()
    assert subset.of(dataset, share=1.0, classes=1.0, seed=0) is dataset


def test_the_config_says_how_much_is_kept():
    config = tiny.config()
    config.data.keep_share, config.data.keep_classes = 0.5, 0.8
    found, everything = data.load(config), data.load(tiny.config())
    assert found.num_classes == 8 and set(found.class_names) < set(everything.class_names)
    counts = dict(zip(everything.class_names, everything.class_counts, strict=True))
    assert found.class_counts.tolist() == [max(1, round(0.5 * counts[name])) for name in found.class_names]
    assert found.fingerprint("test") != everything.fingerprint("test")


def test_the_most_frequent_classes_and_a_total():
    found = subset.most_frequent(made(), 2)
    assert found.class_names == ("a", "b") and found.class_counts.tolist() == [8, 4]
    assert found.split("test").labels.tolist() == [0, 1]
    assert subset.most_frequent(made(), 0).num_classes == 4
    even = long_tail.of_total(found, 6, 1.0, seed=0)
    assert even.class_counts.tolist() == [3, 3] and len(even.split("test")) == 2
    with pytest.raises(ValueError, match=r"config\.data\.frequent is 5, but made has 4 classes"):
        subset.most_frequent(made(), 5)
