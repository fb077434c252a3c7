import numpy as np

from rac_jax import calibrate


def test_the_offset_with_the_best_mean_over_classes_is_chosen():
    logits = np.array([[2.0, 0.0, 3.0]] * 4 + [[0.0, 2.0, 3.0]] + [[0.0, 0.0, 1.5]] * 2)  # class 2 is new
    labels = np.array([0, 0, 0, 0, 1, 2, 2])
    found = calibrate.best(calibrate.accuracies(logits, labels, trained=2))
    assert -1.5 < found < -1.0  # below −1 the trained classes win, above −1.5 the new one keeps its images
    right = (logits + found * np.array([0, 0, 1])).argmax(axis=1) == labels
    assert right.all()


def test_knowledge_of_rows_has_counts_sums_and_the_mean_of_the_class_means():
    rows = calibrate.Rows(np.array([[1.0, 0.0], [3.0, 0.0], [0.0, 4.0]], np.float32), np.array([0, 0, 2], np.int32))
    known = calibrate.knowledge(rows, 3)
    np.testing.assert_array_equal(known.counts, [2, 0, 1])
    np.testing.assert_array_equal(known.sums, [[4, 0], [0, 0], [0, 4]])
    np.testing.assert_array_equal(known.centre, [1.0, 2.0])  # the mean of (2, 0) and (0, 4)


def test_some_images_of_each_class_are_held_out_and_one_is_left():
    labels = np.array([0] * 10 + [1] * 2 + [2])
    held = calibrate._held_out(labels, np.random.default_rng(0))
    assert [int(held[labels == label].sum()) for label in range(3)] == [2, 1, 0]
