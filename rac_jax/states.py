"""The training state: what a step changes and a checkpoint keeps."""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax
from flax import nnx

from rac_jax import sharding, system


class State(flax.struct.PyTreeNode):
    """What training changes."""

    step: jax.Array  # int32
    params: Any
    stats: Any  # running statistics of batch norms; empty for models without
    opt_state: Any


def create(parts: system.System, tx: optax.GradientTransformation) -> tuple[nnx.GraphDef, State, State]:
    """The model's structure, the first state placed on the mesh, and its places (shardings)."""
    graph, params, stats = split(parts.model)
    state = State(jnp.int32(0), params, stats, None)
    abstract = state.replace(opt_state=jax.eval_shape(tx.init, params))
    places = sharding.state(parts.mesh, abstract)
    state = jax.device_put(state, places.replace(opt_state=None))
    opt_state = jax.jit(tx.init, out_shardings=places.opt_state)(state.params)
    return graph, state.replace(opt_state=opt_state), places


def split(model: nnx.Module) -> tuple[nnx.GraphDef, Any, Any]:
    """A module as structure, parameters and all other variables, the latter two as plain dicts."""
    graph, params, *rest = nnx.split(model, nnx.Param, ...)
    return graph, nnx.to_pure_dict(params), nnx.to_pure_dict(rest[0])
