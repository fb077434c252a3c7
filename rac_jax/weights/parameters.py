"""A model's initial parameters, read from files or drawn, each created as shards on its devices."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx

from rac_jax import sharding

Tree = dict[str, Any]  # nested, as `nnx.to_pure_dict` has it


def place(make: Callable[[], nnx.Module], given: Mapping[str, np.ndarray], *places: Tree) -> tuple[Tree, ...]:
    """The arrays of the module that `make` builds, with the shardings `places`; no device ever holds a complete array.

    Args:
      make: builds the module; called in a jitted program that draws only what is not given.
      given: arrays of files by dotted path, used instead of drawn ones.
      *places: trees of shardings that together have every array once.
    """
    where = {path: place for tree in places for path, place in flat(tree).items()}

    def draw() -> dict[str, jax.Array]:
        fresh = flat(nnx.to_pure_dict(nnx.state(make())))
        return {path: value for path, value in fresh.items() if path not in given}

    missing = {path: place for path, place in where.items() if path not in given}
    arrays = jax.jit(draw, out_shardings=missing)() if missing else {}
    for path, values in given.items():
        arrays[path] = sharding.put_array(where[path], np.asarray(values, np.float32))
    return tuple(jax.tree_util.tree_map_with_path(lambda path, _: arrays[_dotted(path)], tree) for tree in places)


def flat(tree: Tree) -> dict[str, Any]:
    """Leaves by dotted path."""
    return {_dotted(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def _dotted(path: tuple) -> str:
    return ".".join(str(part.key) for part in path)


def split(model: nnx.Module) -> tuple[nnx.GraphDef, Any, Any]:
    """A module as structure, parameters and all other variables; the latter two as plain dicts."""
    graph, params, *rest = nnx.split(model, nnx.Param, ...)
    return graph, nnx.to_pure_dict(params), nnx.to_pure_dict(rest[0])
