"""Fits converted arrays to a model, all of them or none."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx

from rac_jax.weights.tensor_files import Tensors


def parameters(model: nnx.Module) -> dict[str, nnx.Variable]:
    """Every array of the model, trained or not, by its dotted path."""
    state = nnx.state(model)
    return {".".join(map(str, path)): variable for path, variable in nnx.to_flat_state(state)}


def fit(model: nnx.Module, arrays: dict[str, np.ndarray], *, source: str, expect_missing: Sequence[str] = ()) -> None:
    """Leaves in `arrays` what the model has a place for; raises when anything does not fit.

    Args:
      model: what they are for; shapes without values will do (`nnx.eval_shape`).
      arrays: by our parameters' paths.
      source: the file's name, for the error.
      expect_missing: paths, or their first parts, that keep their initial values whatever the file has.
    """
    wanted = parameters(model)
    fresh = {path for path in wanted if _under(path, expect_missing)}
    unwanted = list(expect_missing)
    if not any(_under(path, ("head",)) for path in wanted):
        unwanted.append("head")  # features only: the file's classifier has no place to go, and nobody asked for one
    for path in [path for path in arrays if _under(path, unwanted)]:
        del arrays[path]
    lines = _differences(wanted, arrays, fresh)
    if lines:
        raise ValueError(_report(lines, model, source))


def fill(model: nnx.Module, arrays: dict[str, np.ndarray]) -> None:
    """Overwrites the model's parameters in place. Arrays are taken out one by one, so as not to be in memory twice."""
    wanted = parameters(model)
    for path in list(arrays):
        # An own copy: jax would otherwise read from the mapped file for as long as the model lives.
        wanted[path].set_value(jnp.asarray(np.array(arrays.pop(path), dtype=np.float32, order="C")))


def _under(path: str, prefixes: Sequence[str]) -> bool:
    return any(path == prefix or path.startswith(prefix + ".") for prefix in prefixes)


def _differences(wanted: dict[str, Any], given: Tensors, fresh: set[str]) -> list[str]:
    missing = [f"- {p} {tuple(v.shape)}" for p, v in wanted.items() if p not in given and p not in fresh]
    extra = [f"+ {p} {a.shape}" for p, a in given.items() if p not in wanted]
    misshapen = [
        f"! {p}: the model has {tuple(wanted[p].shape)}, the file {a.shape}"
        for p, a in given.items()
        if p in wanted and tuple(wanted[p].shape) != a.shape
    ]
    return missing + extra + misshapen


def _report(lines: list[str], model: nnx.Module, source: str, most: int = 20) -> str:
    shown = lines[:most] + ([f"… and {len(lines) - most} more"] if len(lines) > most else [])
    return (
        f"{source} does not fit {type(model).__name__} "
        "(- only in the model, + only in the file, ! another shape). Give the model the file's sizes, or name "
        "the parameters that shall keep their initial values in expect_missing:\n  " + "\n  ".join(shown)
    )
