import dataclasses

import numpy as np

from rac_jax.memory import keep


@dataclasses.dataclass
class Small:
    """A memory of 12 rows: 6 of a, 4 of b, 2 of c; c is known to two sources. There are no labels."""

    class_names = ()
    label_of = np.full(12, -1, np.int32)

    texts = ("a", "b", "c", "c")
    text_of = np.array([0] * 6 + [1] * 4 + [2, 3])
    mask: np.ndarray | None = None

    def __len__(self):
        return len(self.text_of)

    def allowed(self):
        return self.mask


ALL = {"classes": 1.0, "share": 1.0, "per_class": 0}


def counts(kept):
    of_rows = {"a": slice(0, 6), "b": slice(6, 10), "c": slice(10, 12)}
    return {text: int(kept[rows].sum()) for text, rows in of_rows.items()}


def test_a_share_of_the_rows_is_drawn_by_the_seed():
    kept = keep.rows(Small(), ALL | {"share": 0.5}, seed=0)
    assert kept.sum() == 6
    np.testing.assert_array_equal(kept, keep.rows(Small(), ALL | {"share": 0.5}, seed=0))
    assert (kept != keep.rows(Small(), ALL | {"share": 0.5}, seed=1)).any()


def test_rows_of_each_class_and_some_classes():
    assert counts(keep.rows(Small(), ALL | {"per_class": 3}, seed=0)) == {"a": 3, "b": 3, "c": 2}
    some = counts(keep.rows(Small(), ALL | {"classes": 1 / 3, "per_class": 1}, seed=0))
    assert sorted(some.values()) == [0, 0, 1]


def test_what_is_disabled_is_never_kept():
    memory = Small(np.arange(12) >= 6)
    assert counts(keep.rows(memory, ALL | {"share": 1.0}, seed=0)) == {"a": 0, "b": 4, "c": 2}


class Labelled(Small):
    """The first 8 rows, with two texts, are of the class x, two with the text b of y; the last two have no label."""

    class_names = ("y", "x", "without rows")
    label_of = np.array([1] * 8 + [0] * 2 + [-1] * 2, np.int32)


def test_labels_and_not_texts_are_classes_where_there_are_labels():
    kept = keep.rows(Labelled(), ALL | {"per_class": 1}, seed=0)
    assert [int(kept[rows].sum()) for rows in (slice(0, 8), slice(8, 10), slice(10, 12))] == [1, 1, 1]
    for seed in range(5):  # one class of three: x, y or the text c
        kept = keep.rows(Labelled(), ALL | {"classes": 1 / 3}, seed=seed)
        assert [int(kept[rows].sum()) for rows in (slice(0, 8), slice(8, 10), slice(10, 12))] in (
            [8, 0, 0], [0, 2, 0], [0, 0, 2],
        )  # fmt: skip
