"""The loss of every method in one form: −α_y log softmax(f + τΔ)_y, with label smoothing.

CE has Δ = 0 and α = 1; LACE has Δ_y = log(N_y / N); BalCE has α_y ∝ 1 / N_y.
"""

import jax
import jax.numpy as jnp
import numpy as np


def class_weights(class_counts: np.ndarray, kind: str) -> np.ndarray:
    """α of each class, [C] float32, with mean 1 over the training images."""
    counts = np.asarray(class_counts, np.float64)
    present = np.maximum(counts, 1)  # a class without images weighs on nothing
    if kind == "none":
        weights = np.ones_like(counts)
    elif kind == "inverse":
        weights = 1 / present
    elif kind == "inverse_sqrt":
        weights = 1 / np.sqrt(present)
    elif kind == "inverse_log":
        weights = 1 / np.log(np.maximum(counts, 2))  # log 1 = 0
    else:
        raise ValueError(f"unknown weights {kind!r}; known: none, inverse, inverse_sqrt, inverse_log")
    return (weights * counts.sum() / (weights * counts).sum()).astype(np.float32)


def adjustment(class_counts: np.ndarray, tau: float) -> np.ndarray:
    """τΔ of LACE: what is added to the logits in training, [C] float32."""
    counts = np.maximum(np.asarray(class_counts, np.float64), 1)
    return (tau * np.log(counts / counts.sum())).astype(np.float32)


def general(
    logits: jax.Array,
    labels: jax.Array,
    *,
    weights: np.ndarray,
    delta: np.ndarray,
    smoothing: float = 0.0,
) -> jax.Array:
    """Loss of each example, [B] float32, from logits [B, C], labels [B], α [C] and τΔ [C]."""
    adjusted = logits.astype(jnp.float32) + jnp.asarray(delta)[None]
    log_p = jax.nn.log_softmax(adjusted)
    true = jnp.take_along_axis(log_p, labels[:, None], axis=1)[:, 0]
    loss = -(1 - smoothing) * true - smoothing * log_p.mean(axis=1)
    return jnp.asarray(weights)[labels] * loss


def terms(name: str, class_counts: np.ndarray, *, tau: float, reweight: str) -> tuple[np.ndarray, np.ndarray]:
    """α and τΔ, both [C], of a loss by name: lace, ce or balce."""
    zero = np.zeros(len(class_counts), np.float32)
    if name == "lace":
        return class_weights(class_counts, reweight), adjustment(class_counts, tau)
    if name == "ce":
        return class_weights(class_counts, reweight), zero
    if name == "balce":
        return class_weights(class_counts, "inverse"), zero
    raise ValueError(f"config.loss.name is {name!r}; known: lace, ce, balce")
