"""The benchmark of a step runs whole, and what its figures rest on holds."""

import re

import jax
import pytest

from rac_jax.bench import step as bench

TINY = bench.Sizes(
    batch=8,
    keys=200,
    image_size=32,
    rounds=1,
    image={"width": 16, "depth": 1, "heads": 1, "mlp_width": 16},
    text={"width": 16, "depth": 1, "heads": 1, "mlp_width": 16, "projection": 16},
)


@pytest.mark.slow
def test_every_lookup_is_timed_and_its_arithmetic_counted(tmp_path, capsys):
    config = bench.settings(TINY, tmp_path)
    bench.write_images(tmp_path / "images", config)
    bench.write_memory(config, TINY.keys)
    bench.measure(config, TINY, tmp_path)
    printed = capsys.readouterr().out
    row = r"^  {} +(\d+) +([\d.]+) +([\d.]+) +([\d.]+)$"
    rows = {name: re.search(row.format(name), printed, re.M) for name in ("base", *bench.LOOKUPS)}
    more = {name: float(found[3]) for name, found in rows.items()}
    assert more["base"] == 1.0 < more["cached"] < more["callback"] == more["pipelined"]
    assert "lookup and tokens among 200 keys" in printed
    assert len(re.findall(r"MB", printed)) == 4


def test_a_step_takes_and_returns_one_plain_tree_so_that_it_is_compiled_once_and_dispatched_fast():
    """Dispatch costs by the leaf: 7 ms for 300 in plain dicts, three times as much in nnx.State."""
    state, step, arguments = bench.narrow_step()
    assert len(jax.tree.leaves(state.params)) >= 300
    moved, _ = jax.eval_shape(step, state, *arguments)

    def kinds(tree):
        leaves, structure = jax.tree.flatten(tree)
        return structure, [(leaf.shape, leaf.dtype, leaf.weak_type) for leaf in leaves]

    assert kinds(moved) == kinds(state)
    assert plain(state.params)


def plain(tree):
    return isinstance(tree, jax.Array) or (type(tree) is dict and all(map(plain, tree.values())))
