"""The mesh, and where each array lies on it. No other file knows about devices.

Axes: `data` splits the batch; `fsdp` splits the batch too, and with it the parameters and the optimiser
state. The class axis is never split: 365 or 8,142 classes divide by nothing useful.
"""

from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from ml_collections import ConfigDict

AXES = ("data", "fsdp")
SMALLEST = 2**12  # numbers in an array that is worth splitting


def make_mesh(config: ConfigDict) -> Mesh:
    """The devices as a data × fsdp grid; `config.validate` has checked the numbers."""
    fsdp = config.mesh.fsdp
    data = jax.device_count() // fsdp if config.mesh.data == -1 else config.mesh.data
    devices = jax.devices()[: data * fsdp]
    return jax.make_mesh((data, fsdp), AXES, axis_types=(AxisType.Auto,) * 2, devices=devices)


def replicated(mesh: Mesh) -> NamedSharding:
    """The whole array on every device."""
    return NamedSharding(mesh, PartitionSpec())


def batch(mesh: Mesh) -> NamedSharding:
    """The first axis split over all devices."""
    return NamedSharding(mesh, PartitionSpec(AXES))


def state(mesh: Mesh, tree: Any) -> Any:
    """For each array of a training state (parameters, optimiser state), its place."""

    def place(path: tuple, leaf: Any) -> NamedSharding:
        return NamedSharding(mesh, _split(jax.tree_util.keystr(path), leaf.shape, mesh.shape["fsdp"]))

    return jax.tree_util.tree_map_with_path(place, tree)


def _split(path: str, shape: tuple[int, ...], fsdp: int) -> PartitionSpec:
    """Split the largest axis that divides; a classifier's last axis is the classes."""
    axes = range(len(shape) - 1 if "_head" in path else len(shape))
    candidates = [axis for axis in axes if shape[axis] % fsdp == 0]
    if fsdp == 1 or not candidates or np.prod(shape) < SMALLEST:
        return PartitionSpec()
    widest = max(candidates, key=lambda axis: shape[axis])
    return PartitionSpec(*("fsdp" if axis == widest else None for axis in range(len(shape))))


def put_batch(mesh: Mesh, host_batch: dict[str, np.ndarray]) -> dict[str, jax.Array]:
    """This process's part of a batch -> global arrays."""
    place = batch(mesh)
    return {k: jax.make_array_from_process_local_data(place, v) for k, v in host_batch.items()}


def put_replicated(mesh: Mesh, tree: Any) -> Any:
    """The same host values on every device."""
    return jax.device_put(tree, replicated(mesh))
