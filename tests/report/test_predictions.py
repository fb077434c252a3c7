import numpy as np
import pyarrow as pa
import pytest

from rac_jax.report import predictions
from rac_jax.report.predictions import Predictions, Votes


def some(ids, k=2):
    n = len(ids)
    numbers = np.arange(n, dtype=np.int32)
    votes = Votes(numbers % 3, np.linspace(0.2, 0.9, n, dtype=np.float32), np.full(n, 0.1, np.float32))
    rows = np.arange(n * k, dtype=np.int32).reshape(n, k)
    return Predictions(np.array(ids, np.int32), numbers % 2, {"rac": votes}, rows, rows.astype(np.float32) / 8)


@pytest.mark.parametrize("k", [2, 0])
def test_an_arrow_file_has_a_row_for_each_image(tmp_path, k):
    given = some([0, 1, 2, 3], k)
    predictions.write(tmp_path / "eval" / "test.arrow", given)
    table = pa.ipc.open_file(str(tmp_path / "eval" / "test.arrow")).read_all()
    assert table["id"].to_pylist() == [0, 1, 2, 3] and table["label"].to_pylist() == given.label.tolist()
    for name in ("label", "probability", "of_true"):
        assert table[f"rac_{name}"].to_pylist() == getattr(given.votes["rac"], name).tolist()
    assert table["rows"].to_pylist() == given.rows.tolist() and table["rows"].type.value_type == pa.int32()
    assert table["similarities"].to_pylist() == given.similarities.tolist()


def test_batches_are_joined_in_the_order_of_the_split():
    found = predictions.concatenate([some([2, 5]), some([0, 1])])
    assert found.id.tolist() == [0, 1, 2, 5]
    assert found.rows.tolist() == [[0, 1], [2, 3], [0, 1], [2, 3]]
    np.testing.assert_allclose(found.votes["rac"].probability, [0.2, 0.9, 0.2, 0.9])


def test_which_answers_are_right():
    assert some([0, 1, 2, 3]).right("rac").tolist() == [True, True, False, False]  # 0 1 2 0 against 0 1 0 1
