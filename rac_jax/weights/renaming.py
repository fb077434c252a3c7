"""Rules that turn another project's tensor names and layouts into ours."""

import dataclasses
import re
from collections.abc import Callable, Iterable

import numpy as np

from rac_jax.weights.tensor_files import Tensors

Layout = Callable[[np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Rule:
    """Tensors whose whole name matches `pattern` become `target`, in another layout.

    Attributes:
      pattern: a regular expression over the whole name.
      target: our parameter's path, with \\1 for groups; None for a tensor that is left out. A target that ends
        in "#0", "#1", … is one part of a parameter: the parts are joined along the last axis.
      layout: converts the array.
    """

    pattern: str
    target: str | None
    layout: Layout = lambda array: array


def linear(array: np.ndarray) -> np.ndarray:
    """torch's [out, in] to [in, out]."""
    return array.T


def convolution(array: np.ndarray) -> np.ndarray:
    """torch's [out, in, k, k] to [k, k, in, out]."""
    return array.transpose(2, 3, 1, 0)


def depthwise(array: np.ndarray) -> np.ndarray:
    """torch's [channels, 1, k, k] to [k, k, channels]."""
    return array[:, 0].transpose(1, 2, 0)


def dense_rules(pattern: str, target: str) -> tuple[Rule, ...]:
    """Weight and bias of a torch Linear."""
    return (
        Rule(pattern + r"\.weight", target + ".kernel", linear),
        Rule(pattern + r"\.bias", target + ".bias"),
    )


def qkv_rules(patterns: Iterable[str], target: str) -> tuple[Rule, ...]:
    """Queries, keys and values kept apart as three torch Linears, joined to one."""
    return tuple(
        rule
        for i, pattern in enumerate(patterns)
        for rule in (
            Rule(pattern + r"\.weight", f"{target}.kernel#{i}", linear),
            Rule(pattern + r"\.bias", f"{target}.bias#{i}"),
        )
    )


def layer_norm_rules(pattern: str, target: str) -> tuple[Rule, ...]:
    """Weight and bias of a torch LayerNorm."""
    return (Rule(pattern + r"\.weight", target + ".scale"), Rule(pattern + r"\.bias", target + ".bias"))


def batch_norm_rules(pattern: str, target: str) -> tuple[Rule, ...]:
    """The four arrays of a torch BatchNorm; its step counter is left out."""
    return (
        *layer_norm_rules(pattern, target),
        Rule(pattern + r"\.running_mean", target + ".mean"),
        Rule(pattern + r"\.running_var", target + ".variance"),
        Rule(pattern + r"\.num_batches_tracked", None),
    )


def conv_norm_rules(kernel: str, norm: str, target: str, layout: Layout = convolution) -> tuple[Rule, ...]:
    """A torch convolution without bias, and the BatchNorm after it."""
    return (
        Rule(kernel + r"\.weight", target + ".kernel", layout),
        *batch_norm_rules(norm, target + ".norm"),
    )


def rename(tensors: Tensors, rules: Iterable[Rule]) -> dict[str, np.ndarray]:
    """Applies the first rule that matches each tensor; a tensor that no rule matches keeps its name."""
    compiled = [(re.compile(rule.pattern), rule) for rule in rules]
    renamed: dict[str, np.ndarray] = {}
    parts: dict[str, dict[int, np.ndarray]] = {}
    for name, array in tensors.items():
        found = next(((m, rule) for regex, rule in compiled if (m := regex.fullmatch(name))), None)
        if found is None:
            renamed[name] = array
            continue
        match, rule = found
        if rule.target is None:
            continue
        target, _, part = match.expand(rule.target).partition("#")
        if part:
            parts.setdefault(target, {})[int(part)] = rule.layout(array)
        else:
            renamed[target] = rule.layout(array)
    for target, pieces in parts.items():
        renamed[target] = np.concatenate([pieces[i] for i in sorted(pieces)], axis=-1)
    return renamed
