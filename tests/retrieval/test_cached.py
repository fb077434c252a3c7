import numpy as np
import pytest

from rac_jax.retrieval.cached import open_or_make

MADE_OF = {"memory": "f", "k": 2}


@pytest.fixture
def asked(tmp_path):
    """(a function that opens or finds, how often it had to find)."""
    times = []

    def find():
        times.append(1)
        return {"rows": np.full((3, 2), len(times), np.int32), "similarities": np.ones((3, 2), np.float32)}

    return lambda made_of=MADE_OF: open_or_make(tmp_path / "runs", "train", made_of, find), times, tmp_path


def test_what_was_found_is_kept_and_read(asked):
    get, times, folder = asked
    first, second = get(), get()
    assert len(times) == 1
    np.testing.assert_array_equal(first["rows"], second["rows"])
    np.testing.assert_array_equal(first["similarities"], second["similarities"])
    (path,) = (folder / "runs").iterdir()
    assert path.match("train-*.npz")


def test_neighbours_in_another_memory_are_found_anew(asked):
    get, times, _ = asked
    get()
    assert get({**MADE_OF, "memory": "g"})["rows"][0, 0] == 2
    assert get({**MADE_OF, "memory": "g"})["rows"][0, 0] == 2 and get()["rows"][0, 0] == 1 and len(times) == 2


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b[:100] + b"x" + b[101:]])
def test_a_damaged_file_is_made_anew(asked, damage):
    get, times, folder = asked
    get()
    (path,) = (folder / "runs").iterdir()
    path.write_bytes(damage(path.read_bytes()))
    assert get()["rows"][0, 0] == 2 and get()["rows"][0, 0] == 2 and len(times) == 2
