"""The mesh, and where each array is placed on it. No other file knows about devices.

Axes: `data` splits the batch; `fsdp` splits the batch too, and with it the parameters and the optimiser
state. The class axis is never split: 365 or 8,142 classes do not divide evenly.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from ml_collections import ConfigDict

from rac_jax.config import ConfigError

AXES = ("data", "fsdp")
SMALLEST = 2**12  # numbers in an array that is worth splitting


def make_mesh(config: ConfigDict, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """The devices (default: all) as a data × fsdp grid; `config.validate` has checked the numbers.

    The order is that of `in_order`, on every machine. `jax.make_mesh` would choose another order on a TPU pod.
    """
    devices = in_order(jax.devices() if devices is None else devices)
    processes = len({device.process_index for device in devices})
    fsdp = config.mesh.fsdp
    data = len(devices) // fsdp if config.mesh.data == -1 else config.mesh.data
    if processes > 1 and data * fsdp < len(devices):
        raise ConfigError(
            f"config.mesh.data is {data}; in a run of {processes} processes all {len(devices)} devices "
            "must be used, as with -1"
        )
    grid = np.array(devices[: data * fsdp]).reshape(data, fsdp)
    return Mesh(grid, AXES, axis_types=(AxisType.Auto,) * 2)


def in_order(devices: Sequence[jax.Device]) -> list[jax.Device]:
    """Devices by process, then by id.

    A batch is split over the mesh in this order, so the rows that a process reads are contiguous in the global batch,
    and those of process 0 come first. `data.pipeline` relies on this, and so do building a memory and lookup=cached,
    which take row i of a global batch for image i of the data set.
    """
    return sorted(devices, key=lambda device: (device.process_index, device.id))


def replicated(mesh: Mesh) -> NamedSharding:
    """The whole array on every device."""
    return NamedSharding(mesh, PartitionSpec())


def batch(mesh: Mesh) -> NamedSharding:
    """The first axis split over all devices."""
    return NamedSharding(mesh, PartitionSpec(AXES))


def state(mesh: Mesh, shapes: Any) -> Any:
    """The shapes of a training state (parameters, optimiser state), each with its place."""

    def place(path: tuple, leaf: Any) -> jax.ShapeDtypeStruct:
        spec = _split(jax.tree_util.keystr(path), leaf.shape, mesh.shape["fsdp"])
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec))

    return jax.tree_util.tree_map_with_path(place, shapes)


def shardings(tree: Any) -> Any:
    """The sharding of each array, or of each shape that has one."""
    return jax.tree.map(lambda leaf: leaf.sharding, tree)


def _split(path: str, shape: tuple[int, ...], fsdp: int) -> PartitionSpec:
    """Split the largest axis that divides, but never the classes: the last axis of a head, the first of prototypes."""
    axes = range(1 if "correction" in path else 0, len(shape) - 1 if "_head" in path else len(shape))
    candidates = [axis for axis in axes if shape[axis] % fsdp == 0]
    if fsdp == 1 or not candidates or np.prod(shape) < SMALLEST:
        return PartitionSpec()
    widest = max(candidates, key=lambda axis: shape[axis])
    return PartitionSpec(*("fsdp" if axis == widest else None for axis in range(len(shape))))


def gathered(mesh: Mesh, params: Any) -> Any:
    """Parameters as a model uses them inside a program: whole on every device. Their gradients come back split.

    A step then splits its arithmetic by the batch alone. Left to itself, XLA also splits activations by features,
    because the kernels are split so, and sends them between devices in every layer.
    """

    def gather(path: tuple, leaf: jax.Array) -> jax.Array:
        spec = _split(jax.tree_util.keystr(path), leaf.shape, mesh.shape["fsdp"])
        return leaf if spec == PartitionSpec() else _gather(leaf, NamedSharding(mesh, spec))

    return jax.tree_util.tree_map_with_path(gather, params)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _gather(split: jax.Array, place: NamedSharding) -> jax.Array:
    return jax.lax.with_sharding_constraint(split, NamedSharding(place.mesh, PartitionSpec()))


def _gather_forward(split: jax.Array, place: NamedSharding) -> tuple[jax.Array, None]:
    return _gather(split, place), None


def _gather_backward(place: NamedSharding, _: None, gradient: jax.Array) -> tuple[jax.Array]:
    return (jax.lax.with_sharding_constraint(gradient, place),)


_gather.defvjp(_gather_forward, _gather_backward)


def padded_size(batch_size: int, devices: int, parts: int = 1) -> int:
    """The number of rows of a padded batch, so that each device has the same number of rows in each of `parts`."""
    each = devices * parts
    return -(-batch_size // each) * each


def put_batch(mesh: Mesh, host_batch: dict[str, np.ndarray]) -> dict[str, jax.Array]:
    """This process's part of a batch -> global arrays."""
    return jax.make_array_from_process_local_data(batch(mesh), host_batch)


def put_array(place: NamedSharding, values: np.ndarray) -> jax.Array:
    """Place host values, which are the same in every process; each device gets a copy of its own part only."""
    # A copy, because jax may otherwise use the memory of the host array, or of a mapped file, for its own array.
    return jax.make_array_from_callback(values.shape, place, lambda part: np.array(values[part], order="C"))


def put_replicated(mesh: Mesh, tree: Any) -> Any:
    """The same host values on every device."""
    return jax.tree.map(lambda values: put_array(replicated(mesh), np.asarray(values)), tree)


def rows_of_this_process(array: jax.Array) -> np.ndarray:
    """The rows of this process in an array that is placed as a batch."""
    return np.concatenate(shards_of_this_process(array))


def shards_of_this_process(array: jax.Array) -> list[np.ndarray]:
    """The same rows, device by device in the batch's order."""
    shards = sorted(array.addressable_shards, key=lambda shard: shard.index[0].start or 0)
    return [np.asarray(shard.data) for shard in shards]
