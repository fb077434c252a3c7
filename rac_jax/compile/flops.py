"""Floating-point operations of a program, counted in its jaxpr: two for each product of a matrix or convolution.

XLA counts nothing for GPUs and counts the body of a loop once; this count is the same for every target. Elementwise
work is left out.
"""

import math
from collections import Counter
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr

Flops = Counter[str]  # by dtype of the products


def count(jaxpr: ClosedJaxpr | Jaxpr) -> Flops:
    """FLOPs of all devices together."""
    total: Flops = Counter()
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        name, parameters = equation.primitive.name, equation.params
        if name == "dot_general":
            total[_dtype(equation)] += _dot(equation)
        elif name == "conv_general_dilated":
            total[_dtype(equation)] += _convolution(equation)
        elif name == "cond":
            branches = [count(branch) for branch in parameters["branches"]]
            total += sorted(branches, key=lambda found: found.total())[-1]
        else:
            for inner in _inner(parameters):
                for dtype, flops in count(inner).items():
                    total[dtype] += flops * _times(name, parameters)
    return total


def _inner(parameters: dict[str, Any]) -> list[Any]:
    values = [v for value in parameters.values() for v in (value if isinstance(value, tuple | list) else (value,))]
    return [value for value in values if isinstance(value, ClosedJaxpr | Jaxpr)]


def _times(name: str, parameters: dict[str, Any]) -> int:
    """How often an inner program runs: in every step of a scan, on every device of a shard_map."""
    if name == "scan":
        return parameters["length"]
    return math.prod(parameters["mesh"].shape.values()) if name == "shard_map" else 1


def _dtype(equation: Any) -> str:
    return max((str(v.aval.dtype) for v in equation.invars[:2]), key=lambda name: name == "float32")


def _dot(equation: Any) -> int:
    (contracted, _), _ = equation.params["dimension_numbers"]
    left = equation.invars[0].aval.shape
    return 2 * math.prod(equation.outvars[0].aval.shape) * math.prod(left[axis] for axis in contracted)


def _convolution(equation: Any) -> int:
    kernel = equation.invars[1].aval.shape
    features = kernel[equation.params["dimension_numbers"].rhs_spec[0]]
    zeros = math.prod(equation.params["lhs_dilation"])  # between the inputs of a transposed convolution
    return 2 * math.prod(equation.outvars[0].aval.shape) * math.prod(kernel) // features // zeros
