"""Checks that converted arrays fit a model: all of them, or an error that lists what does not."""

from typing import Any

import numpy as np
from flax import nnx

from rac_jax.weights.tensor_files import Tensors


def parameters(model: nnx.Module) -> dict[str, nnx.Variable]:
    """Every array of the model, trained or not, by its dotted path."""
    state = nnx.state(model)
    return {".".join(map(str, path)): variable for path, variable in nnx.to_flat_state(state)}


def check(model: nnx.Module, arrays: Tensors, *, source: str) -> None:
    """Raise ValueError unless the arrays are exactly the model's (but for adapters), in its shapes, and finite.

    Args:
      model: the model; shapes without values are enough (`nnx.eval_shape`).
      arrays: by our parameters' paths.
      source: the file's name, for the error.
    """
    lines = _differences(_published(model), arrays)
    if lines:
        raise ValueError(_report(lines, model, source))
    for path, array in arrays.items():
        if not _finite(array):
            raise ValueError(f"{source}: the tensor for {path} {array.shape} contains NaN or infinite values")


def is_own(model: nnx.Module, tensors: Tensors) -> bool:
    """Whether a file has the model's own paths, as those that rac_jax writes."""
    return tensors.keys() == _published(model).keys()


def _published(model: nnx.Module) -> dict[str, nnx.Variable]:
    return {path: value for path, value in parameters(model).items() if ".adapter." not in path}


def _finite(array: np.ndarray) -> bool:
    """Whether all values are finite as float32, which is what parameters are."""
    with np.errstate(over="ignore"):
        return bool(np.isfinite(np.asarray(array, np.float32)).all())


def _differences(wanted: dict[str, Any], given: Tensors) -> list[str]:
    missing = [f"- {p} {tuple(v.shape)}" for p, v in wanted.items() if p not in given]
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
        f"{source} does not fit {type(model).__name__} (- only in the model, + only in the file, ! another shape). "
        "Give the model the file's sizes:\n  " + "\n  ".join(shown)
    )
