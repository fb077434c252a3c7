"""The loss of every method in one form: −α_y log softmax(f + τΔ − m_y 1_y)_y, with label smoothing.

CE has Δ = 0 and α = 1; LACE has Δ_y = log(N_y / N); BalCE has α_y ∝ 1 / N_y; LDAM lowers the true class's
logit, a scaled cosine, by a margin m_y ∝ N_y^(−1/4). All others have m = 0.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from rac_jax import config as configs
from rac_jax.models.rac import COSINE_SCALE

LARGEST_MARGIN = 0.5  # of LDAM, as a cosine


@dataclasses.dataclass(frozen=True)
class Terms:
    """What a loss computes from the class counts; each [C] float32."""

    weights: np.ndarray  # α
    delta: np.ndarray  # τΔ
    margin: np.ndarray  # m


def class_weights(class_counts: np.ndarray, kind: str) -> np.ndarray:
    """α of each class, [C] float32, with mean 1 over the training images."""
    counts = np.asarray(class_counts, np.float64)
    present = np.maximum(counts, 1)  # the weight of a class without images is never used
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
    """τΔ of LACE, which is added to the logits in training, [C] float32."""
    counts = np.maximum(np.asarray(class_counts, np.float64), 1)
    return (tau * np.log(counts / counts.sum())).astype(np.float32)


def margins(class_counts: np.ndarray, scale: float = COSINE_SCALE) -> np.ndarray:
    """m of LDAM for cosines with this scale: the rarest class has the largest margin, [C] float32."""
    counts = np.maximum(np.asarray(class_counts, np.float64), 1)
    return (scale * LARGEST_MARGIN * (counts / counts.min()) ** -0.25).astype(np.float32)


def general(logits: jax.Array, labels: jax.Array, terms: Terms, smoothing: float = 0.0) -> jax.Array:
    """Loss of each example, [B] float32, from logits [B, C] and labels [B]."""
    true_class = jax.nn.one_hot(labels, logits.shape[-1], dtype=jnp.float32)
    adjusted = logits.astype(jnp.float32) + jnp.asarray(terms.delta)[None]
    log_p = jax.nn.log_softmax(adjusted - true_class * jnp.asarray(terms.margin)[None])
    true = jnp.take_along_axis(log_p, labels[:, None], axis=1)[:, 0]
    loss = -(1 - smoothing) * true - smoothing * log_p.mean(axis=1)
    return jnp.asarray(terms.weights)[labels] * loss


def terms(name: str, class_counts: np.ndarray, *, tau: float, reweight: str, scale: float = COSINE_SCALE) -> Terms:
    """The terms of a loss by name: lace, ce, balce, ldam, or ldam_paper (LDAM with the sign printed in the paper).

    `scale` is that of the cosines, for LDAM.
    """
    zero = np.zeros(len(class_counts), np.float32)
    weights = class_weights(class_counts, reweight)
    if name == "lace":
        return Terms(weights, adjustment(class_counts, tau), zero)
    if name == "ce":
        return Terms(weights, zero, zero)
    if name == "balce":
        if reweight != "none":
            raise ValueError(f"loss.reweight is {reweight!r}; with balce, which has its own weights, it must be none")
        return Terms(class_weights(class_counts, "inverse"), zero, zero)
    if name == "ldam":
        return Terms(weights, zero, margins(class_counts, scale))
    if name == "ldam_paper":
        return Terms(weights, zero, -margins(class_counts, scale))
    raise ValueError(f"config.loss.name is {name!r}; known: lace, ce, balce, ldam, ldam_paper")


def from_config(config: ConfigDict, class_counts: np.ndarray) -> Terms:
    """The terms of a config's loss for these class counts."""
    loss, model = config.loss, config.model
    scale = model.prototype.scale if "prototype" in configs.voices(config) else model.head_scale
    return terms(loss.name, class_counts, tau=loss.tau, reweight=loss.reweight, scale=scale)
