"""What the memory's benchmark measures with."""

import numpy as np
import pytest

from rac_jax.bench import large, opening
from rac_jax.bench import memory as bench
from rac_jax.memory import made, manifest
from rac_jax.retrieval import texts


def test_made_keys_have_near_neighbours():
    """Unlike noise: the nearest of 3,000 keys is far nearer than the others."""
    keys, queries = made.keys(3000, 128), made.keys(50, 128, seed=1)
    np.testing.assert_allclose(np.linalg.norm(keys, axis=1), 1, rtol=1e-5)
    cosines = np.sort(queries @ keys.T, axis=1)
    assert cosines[:, -1].mean() > 0.75 and cosines.mean() < 0.3
    np.testing.assert_array_equal(keys, made.keys(3000, 128))


def test_agreement_counts_the_true_neighbours_that_were_found():
    assert bench.agreement(np.array([[1, 2, 3], [4, 5, 6]]), np.array([[3, 2, 9], [6, 5, 4]])) == pytest.approx(5 / 6)


def test_a_memory_of_two_sources_is_opened(tmp_path, capsys):
    opening.print_opening(1000, 1, tmp_path / "memory")
    assert "1,000 made keys × 16" in capsys.readouterr().out
    assert [source.rows for source in manifest.read(tmp_path / "memory").sources] == [900, 100]


def test_captions_are_tokenised_once(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(texts, "FEW", 100)
    opening.print_captions(300, tmp_path / "memory")
    assert "same: True" in capsys.readouterr().out
    assert len(list((tmp_path / "memory" / "tokens").iterdir())) == 1


def test_an_index_of_made_keys_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(large, "QUERIES", 20)
    path = large._write_keys(1500, tmp_path / "keys.bin")
    assert path.stat().st_size == 1500 * 768 * 2
    nearest = large._exact(path, 1500)
    for kind in large.INDEXES:
        found = large.measure(kind, path, 1500, nearest)
        assert found.recall > 0.9 and found.built > 0 and found.searched > 0
        assert large.line(found).startswith(f"| {kind} | 1,500 | 0.00 |")
    assert found.bytes < 1500 * (768 / 8 + 60) + 40 * 768 * 4  # a bit a number, and centres
    assert not list(tmp_path.glob("*.faiss"))


def test_what_more_rows_take_is_calculated():
    measured = large.Figures("ivf_rabitq", 1000, built=1.0, building=700, bytes=300, searched=1.0, recall=0.9)
    more = large.calculated(measured, 4000)
    assert (more.rows, more.built, more.bytes, more.building, more.recall) == (4000, 8.0, 1200, 1200 + 800, None)
    assert "calculated" in large.line(more)
