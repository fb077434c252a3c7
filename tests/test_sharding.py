import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from rac_jax import config as configs
from rac_jax import sharding


def mesh(data=-1, fsdp=1):
    config = configs.default()
    config.mesh.data, config.mesh.fsdp = data, fsdp
    return sharding.make_mesh(config)


@pytest.mark.parametrize("data, fsdp, shape", [(-1, 1, (8, 1)), (-1, 4, (2, 4)), (1, 1, (1, 1)), (2, 2, (2, 2))])
def test_meshes(data, fsdp, shape):
    assert tuple(mesh(data, fsdp).shape.values()) == shape


def test_a_batch_is_split_over_all_devices_in_order():
    placed = sharding.put_batch(mesh(fsdp=2), {"id": np.arange(16, dtype=np.int32)})["id"]
    parts = sorted((shard.device.id, np.asarray(shard.data).tolist()) for shard in placed.addressable_shards)
    assert [part for _, part in parts] == [[2 * i, 2 * i + 1] for i in range(8)]


def test_where_the_arrays_of_a_state_lie():
    tree = {
        "kernel": jnp.zeros((64, 256)),
        "odd": jnp.zeros((63, 255)),
        "small": jnp.zeros((8, 8)),
        "base_head": {"kernel": jnp.zeros((512, 8192)), "bias": jnp.zeros(8192)},
    }
    specs = jax.tree.map(lambda shape: shape.sharding.spec, sharding.state(mesh(fsdp=4), tree))
    assert specs == {
        "kernel": PartitionSpec(None, "fsdp"),
        "odd": PartitionSpec(),
        "small": PartitionSpec(),
        "base_head": {"kernel": PartitionSpec("fsdp", None), "bias": PartitionSpec()},  # never the classes
    }
    plain = jax.tree.map(lambda shape: shape.sharding.spec, sharding.state(mesh(), tree))
    assert set(jax.tree.leaves(plain, is_leaf=lambda x: isinstance(x, PartitionSpec))) == {PartitionSpec()}


@pytest.mark.parametrize("classes", [365, 8142])
@pytest.mark.parametrize("devices", [1, 2, 3, 4, 6, 8])
def test_the_class_axis_is_whole_on_any_number_of_devices(classes, devices):
    config = configs.default()
    config.mesh.data, config.mesh.fsdp = 1, devices
    head = {"kernel": jnp.zeros((768, classes)), "bias": jnp.zeros(classes)}
    tree = {"base_head": head, "mu": {"text_head": head}}
    for shape in jax.tree.leaves(sharding.state(sharding.make_mesh(config), tree)):
        assert shape.sharding.shard_shape(shape.shape)[-1] == classes
        if len(shape.shape) == 2:
            assert shape.sharding.shard_shape(shape.shape)[0] == 768 // devices
