"""The training state: what a step changes and a checkpoint keeps."""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from rac_jax import parameters, sharding, system


class State(flax.struct.PyTreeNode):
    """What training changes."""

    step: Any  # int32
    params: Any
    stats: Any  # running statistics of batch norms; empty for models without
    opt_state: Any


def abstract(parts: system.System, tx: optax.GradientTransformation) -> State:
    """The shapes, types and places of a state, with no array made: what a checkpoint is restored into."""
    _, params, stats = split(parts.model)
    step = jax.ShapeDtypeStruct((), jnp.int32)
    return sharding.state(parts.mesh, State(step, params, stats, jax.eval_shape(tx.init, params)))


def create(parts: system.System, tx: optax.GradientTransformation) -> State:
    """The first state: weights that were read, the rest drawn, each array made where it lies."""
    places = sharding.places(abstract(parts, tx))
    params, stats = parameters.create(parts.make_model, parts.read_weights(), places.params, places.stats)
    opt_state = jax.jit(tx.init, out_shardings=places.opt_state)(params)
    return State(sharding.put_array(places.step, np.zeros((), np.int32)), params, stats, opt_state)


def split(model: nnx.Module) -> tuple[nnx.GraphDef, Any, Any]:
    """A module as structure, parameters and all other variables, the latter two as plain dicts."""
    graph, params, *rest = nnx.split(model, nnx.Param, ...)
    return graph, nnx.to_pure_dict(params), nnx.to_pure_dict(rest[0])
