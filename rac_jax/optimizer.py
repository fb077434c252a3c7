"""AdamW with warm-up, a cosine to the minimum, clipping, and no decay where it does harm."""

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


def steps_per_epoch(images: int, batch_size: int) -> int:
    """Batches until every image was seen once."""
    return math.ceil(images / batch_size)


def total_steps(config: ConfigDict, images: int) -> int:
    """Steps of the whole schedule."""
    return max(1, round(config.train.epochs * steps_per_epoch(images, config.train.batch_size)))


def schedule(config: ConfigDict, images: int) -> optax.Schedule:
    """Learning rate by step."""
    optim = config.optim
    total = total_steps(config, images)
    warmup = min(round(optim.warmup_epochs * steps_per_epoch(images, config.train.batch_size)), total - 1)
    low, high = optim.min_learning_rate, optim.learning_rate

    def rising(step: Any) -> Any:
        return low + (high - low) * (step / max(warmup, 1)) ** optim.warmup_power

    falling = optax.cosine_decay_schedule(high, total - warmup, alpha=low / high if high else 0.0)
    return optax.join_schedules([rising, falling], [warmup])


def learning_rate(config: ConfigDict, images: int) -> Callable[[int], float]:
    """The schedule, to be asked by the host: one compiled program and one number each way."""
    with jax.numpy_dtype_promotion("standard"):  # as in `update`
        program = jax.jit(schedule(config, images)).lower(jax.ShapeDtypeStruct((), jnp.int32)).compile()
    return lambda step: float(jax.device_get(program(jax.device_put(np.int32(step)))))


def from_config(config: ConfigDict, images: int) -> optax.GradientTransformation:
    """The optimiser of a run over `images` training images."""
    optim = config.optim
    base_rate = optax.masked(optax.scale(optim.base_learning_rate_factor), belongs_to("base"))
    text_rate = optax.masked(optax.scale(optim.text_learning_rate_factor), belongs_to("text", "text_head"))
    frozen = optax.masked(optax.set_to_zero(), functools.partial(not_trained, config))
    adamw = _adamw(optim, schedule(config, images))
    return optax.chain(optax.clip_by_global_norm(optim.clip), adamw, base_rate, text_rate, frozen)


def _adamw(optim: ConfigDict, rate: optax.Schedule) -> optax.GradientTransformation:
    """AdamW, with the moments of all vectors in two arrays: a step is started the sooner the fewer arrays it has."""
    adam = optax.scale_by_adam(b1=optim.beta1, b2=optim.beta2, eps=optim.epsilon)
    return optax.chain(
        optax.masked(optax.flatten(adam), functools.partial(_have_rank, high=False)),
        optax.masked(adam, functools.partial(_have_rank, high=True)),
        optax.add_decayed_weights(optim.weight_decay, mask=decayed),
        optax.scale_by_learning_rate(rate),
    )


def _have_rank(params: Any, high: bool) -> Any:
    """Which parameters are matrices and larger, or else which are vectors and numbers."""
    return jax.tree.map(lambda leaf: (leaf.ndim > 1) == high, params)


def update(tx: optax.GradientTransformation, grads: Any, opt_state: Any, params: Any) -> tuple[Any, Any]:
    """One step: the new parameters and the new optimiser state."""
    with jax.numpy_dtype_promotion("standard"):  # optax itself mixes integers and floats
        updates, opt_state = tx.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state


def decayed(params: Any) -> Any:
    """Which parameters decay: matrices and kernels, not biases, norms, class token or positions."""

    def rule(path: tuple, leaf: jax.Array) -> bool:
        name = jax.tree_util.keystr(path)
        return leaf.ndim > 1 and not any(word in name for word in UNDECAYED)

    return jax.tree_util.tree_map_with_path(rule, params)


def not_trained(config: ConfigDict, params: Any) -> Any:
    """Which parameters stay as they are: those whose path begins as config.optim.frozen says."""
    pattern = config.optim.frozen
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in jax.tree.leaves_with_path(params)]
    mask = [bool(pattern) and re.match(pattern, name) is not None for name in names]
    absent = {"base": "text", "retrieval": "base"}.get(config.model.branches)  # so that one pattern does for all three
    of_the_absent = absent is not None and pattern.startswith(absent)
    if pattern and not of_the_absent and (all(mask) or not any(mask)):
        raise ConfigError(
            f"config.optim.frozen={pattern!r} matches {'every' if all(mask) else 'no'} parameter; "
            f"their paths are as {names[0]} and {names[len(names) // 2]}"
        )
    return jax.tree.unflatten(jax.tree.structure(params), mask)


def belongs_to(*modules: str) -> Callable[[Any], Any]:
    """Which parameters belong to some of the model's modules, as a mask of all."""
    return lambda params: {
        name: jax.tree.map(lambda _, mine=name in modules: mine, tree) for name, tree in params.items()
    }
