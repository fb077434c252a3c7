"""AdamW or SGD with warm-up, a cosine, clipping, groups of parameters with their own rates, and frozen ones."""

import functools
import math
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import ConfigDict

from rac_jax.config import ConfigError

UNDECAYED = ("class_token", "position_embedding", "logit_scale")
TRAINED, FROZEN = "trained", "frozen"
SCALE_FACTOR = 10.0  # a learned fusion scale is one number and moves this much faster than a weight


def steps_per_epoch(images: int, batch_size: int) -> int:
    """Batches until every image was seen once."""
    return math.ceil(images / batch_size)


def total_steps(config: ConfigDict, images: int) -> int:
    """Steps of the full schedule."""
    return round(config.train.epochs * steps_per_epoch(images, config.train.batch_size))


def schedule(config: ConfigDict, images: int, xp: Any = jnp) -> optax.Schedule:
    """Learning rate by step: a straight line up, then a cosine down. `xp` is jax.numpy, or numpy for the host."""
    optim = config.optim
    total = total_steps(config, images)
    warmup = max(0, min(round(optim.warmup_epochs * steps_per_epoch(images, config.train.batch_size)), total - 1))
    low, high = optim.min_learning_rate, optim.learning_rate

    def rate(step: Any) -> jax.Array:
        now = xp.asarray(step, xp.float32)
        rising = now / max(warmup, 1)
        falling = 0.5 + 0.5 * xp.cos(math.pi * xp.minimum((now - warmup) / max(total - warmup, 1), 1.0))
        return low + (high - low) * xp.where(now < warmup, rising, falling)

    return rate


def learning_rate(config: ConfigDict, images: int) -> Callable[[int], float]:
    """The schedule as a function for the host, which asks no device."""
    rate = schedule(config, images, np)
    return lambda step: float(rate(step))


def from_config(config: ConfigDict, images: int, *, some: bool = False) -> optax.GradientTransformation:
    """The optimiser of a run over `images` training images. Frozen parameters have no moments.

    `some` says that it is for some of the run's parameters only: see `not_trained`.
    """
    optim = config.optim
    decay = optax.add_decayed_weights(optim.weight_decay, mask=decayed)
    if optim.name == "sgd":
        rule = optax.chain(decay, optax.trace(optim.beta1))
    else:
        rule = optax.chain(optax.scale_by_adam(optim.beta1, optim.beta2, optim.epsilon), decay)

    def by_group(updates: Any, _: Any) -> Any:
        rates = factors(optim)
        return jax.tree.map(lambda update, group: rates[group] * update, updates, labels(updates))

    return optax.chain(
        optax.clip_by_global_norm(optim.clip),
        # The groups share one rule: each label has a tree of its own in the state, which every step takes apart.
        optax.partition({TRAINED: rule, FROZEN: optax.set_to_zero()}, functools.partial(trained, config, some=some)),
        optax.stateless(by_group),
        optax.scale_by_learning_rate(schedule(config, images)),
    )


def factors(optim: ConfigDict) -> dict[str, float]:
    """The learning rate of each group of parameters, relative to optim.learning_rate."""
    return {
        "base": optim.base_learning_rate_factor,
        "text": optim.text_learning_rate_factor,
        "scale": SCALE_FACTOR,
        "other": 1.0,
    }


def trained(config: ConfigDict, params: Any, *, some: bool = False) -> Any:
    """TRAINED or FROZEN for each parameter."""
    return jax.tree.map(lambda still: FROZEN if still else TRAINED, not_trained(config, params, some=some))


def labels(params: Any) -> Any:
    """The group of each parameter, by the module at the beginning of its path."""
    groups = {"base": "base", "text": "text", "text_head": "text", "logit_scale": "scale"}
    return jax.tree_util.tree_map_with_path(lambda path, _: groups.get(path[0].key, "other"), params)


def update(tx: optax.GradientTransformation, grads: Any, opt_state: Any, params: Any) -> tuple[Any, Any]:
    """One step: the new parameters and the new optimiser state."""
    with jax.numpy_dtype_promotion("standard"):  # optax's Adam raises a float to the power of its integer count
        updates, opt_state = tx.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state


def decayed(params: Any) -> Any:
    """Which parameters decay: matrices and kernels, not biases, norms, class token or positions."""

    def rule(path: tuple, leaf: jax.Array) -> bool:
        name = jax.tree_util.keystr(path)
        return leaf.ndim > 1 and not any(word in name for word in UNDECAYED)

    return jax.tree_util.tree_map_with_path(rule, params)


def not_trained(config: ConfigDict, params: Any, *, some: bool = False) -> Any:
    """Which parameters stay as they are: those whose path begins as config.optim.frozen says.

    A pattern that matches none or all of them is refused, unless these are only `some` of a run's parameters.
    """
    pattern = config.optim.frozen
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in jax.tree.leaves_with_path(params)]
    mask = [bool(pattern) and re.match(pattern, name) is not None for name in names]
    absent = {"base", "text"} - set(params)  # so that one pattern works for all variants of a config
    of_the_absent = any(pattern.startswith(role) for role in absent)
    if pattern and not some and not of_the_absent and (all(mask) or not any(mask)):
        raise ConfigError(
            f"config.optim.frozen={pattern!r} matches {'every' if all(mask) else 'no'} parameter; "
            f"their paths look like {names[0]} and {names[len(names) // 2]}"
        )
    return jax.tree.unflatten(jax.tree.structure(params), mask)
