import numpy as np
import pytest

from rac_jax.report import predictions
from rac_jax.report.predictions import Predictions, Votes


def some(ids, k=2):
    n = len(ids)
    numbers = np.arange(n, dtype=np.int32)
    votes = Votes(numbers % 3, np.linspace(0.2, 0.9, n, dtype=np.float32), np.full(n, 0.1, np.float32))
    rows = np.arange(n * k, dtype=np.int32).reshape(n, k)
    return Predictions(np.array(ids, np.int32), numbers % 2, {"rac": votes}, rows, rows.astype(np.float32) / 8)


def assert_equal(found, expected):
    for name in ("id", "label", "rows", "similarities"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
        assert getattr(found, name).dtype == getattr(expected, name).dtype
    for branch, votes in expected.votes.items():
        for name in ("label", "probability", "of_true"):
            np.testing.assert_array_equal(getattr(found.votes[branch], name), getattr(votes, name))


@pytest.mark.parametrize("k", [2, 0])
def test_what_is_written_is_read(tmp_path, k):
    expected = some([0, 1, 2, 3], k)
    predictions.write(tmp_path / "eval" / "test.arrow", expected)
    assert_equal(predictions.read(tmp_path / "eval" / "test.arrow"), expected)


def test_batches_are_joined_in_the_order_of_the_split():
    found = predictions.concatenate([some([2, 5]), some([0, 1])])
    assert found.id.tolist() == [0, 1, 2, 5]
    assert found.rows.tolist() == [[0, 1], [2, 3], [0, 1], [2, 3]]
    np.testing.assert_allclose(found.votes["rac"].probability, [0.2, 0.9, 0.2, 0.9])


def test_which_answers_are_right():
    assert some([0, 1, 2, 3]).right("rac").tolist() == [True, True, False, False]  # 0 1 2 0 against 0 1 0 1


def test_a_missing_or_cut_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.arrow is missing; evaluate"):
        predictions.read(tmp_path / "none.arrow")
    predictions.write(tmp_path / "cut.arrow", some([0, 1]))
    whole = (tmp_path / "cut.arrow").read_bytes()
    (tmp_path / "cut.arrow").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"cut\.arrow is no Arrow file, or was cut short"):
        predictions.read(tmp_path / "cut.arrow")
