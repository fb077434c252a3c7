import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec

from rac_jax import config as configs
from rac_jax import models, optimizer, sharding, train
from rac_jax.compile import hlo
from rac_jax.models.rac import RAC, VoiceSettings
from rac_jax.weights import parameters


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
@pytest.mark.parametrize("devices", range(1, 9))
def test_the_class_axis_is_whole_on_any_number_of_devices(classes, devices):
    config = configs.default()
    config.mesh.data, config.mesh.fsdp = 1, devices
    head = {"kernel": jnp.zeros((768, classes)), "bias": jnp.zeros(classes)}
    tree = {"base_head": head, "mu": {"text_head": head}}
    for shape in jax.tree.leaves(sharding.state(sharding.make_mesh(config), tree)):
        assert shape.sharding.shard_shape(shape.shape)[-1] == classes
        if len(shape.shape) == 2:
            assert shape.sharding.shard_shape(shape.shape)[0] == (768 if 768 % devices else 768 // devices)


@pytest.fixture(scope="module", params=[365, 8142])
def alone(request):
    """So many classes, and the loss and the gradient's norm on one device."""
    return request.param, one_step(request.param, devices=1)


@pytest.mark.parametrize("devices", [3, 8])
def test_a_step_of_any_number_of_classes_on_any_number_of_devices(alone, devices):
    classes, expected = alone
    for name, value in one_step(classes, devices).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, err_msg=name)


def test_activations_are_split_by_the_batch_alone():
    """Parameters are gathered and their gradients scattered; no layer's activations go from device to device."""
    step, arguments = made_step(classes=365, devices=8)
    moved = hlo.collectives(step.lower(*arguments).compile().as_text())
    assert moved["all-gather"].count > 0
    exchanged = moved.get("all-to-all", hlo.Moved())
    assert exchanged.count <= 1  # the gradient of the token embeddings, which are split by features
    assert exchanged.payload <= 8 * 77 * 120 * 4


def one_step(classes, devices):
    """The metrics of a first step."""
    step, arguments = made_step(classes, devices)
    state, metrics = step(*arguments)
    head = state.params["base_head"]["kernel"]
    assert head.addressable_shards[0].data.shape == (120 // devices, classes)
    return jax.device_get(metrics)


def made_step(classes, devices):
    """A step and its arguments, parameters split over the devices, which do not divide the batch of 7."""
    config, rngs = configs.default(), nnx.Rngs(0)
    config.mesh.data, config.mesh.fsdp, config.train.batch_size = 1, devices, 7
    narrow = {"width": 120, "heads": 2, "mlp_width": 120, "depth": 1, "rngs": rngs}
    base = models.create("vit_b16", image_size=16, **narrow)
    text = models.create("clip_text", projection=120, vocab_size=100, **narrow)
    graph, params, stats = parameters.split(RAC(base, text, num_classes=classes, settings=VoiceSettings(), rngs=rngs))
    tx = optimizer.from_config(config, images=1000)
    mesh = sharding.make_mesh(config)
    state = train.State(jnp.int32(0), params, stats, tx.init(params))
    state = jax.device_put(state, sharding.shardings(sharding.state(mesh, state)))
    random, rows = np.random.default_rng(0), np.arange(sharding.padded_size(7, devices))
    images, tokens = random.integers(0, 256, (7, 16, 16, 3), np.uint8), random.integers(1, 99, (7, 77), np.int32)
    labels = random.integers(0, classes, 7, np.int32)
    batch = {"image": images[rows % 7], "label": labels[rows % 7], "mask": rows < 7}
    placed = sharding.put_batch(mesh, batch)
    step = train.make_train_step(config, graph, tx, np.arange(1, classes + 1), mesh=mesh)
    none = np.zeros((len(rows), 1), np.float32)
    found = {"tokens": tokens[rows % 7], "rows": none.astype(np.int32), "similarities": none, "key": none}
    own = {"inside": none[:, 0], "own_weight": none[:, 0], "own_label": np.full(len(rows), -1, np.int32)}
    found = sharding.put_batch(mesh, found | own)
    return jax.jit(step, donate_argnums=0), (state, placed, found, None)


def test_the_classes_of_prototypes_are_never_split():
    spec = sharding._split("['params']['prototype']['correction']", (1000, 768), 8)
    assert spec == PartitionSpec(None, "fsdp")
    assert sharding._split("['params']['base_head']['kernel']", (768, 1000), 8) == PartitionSpec("fsdp", None)
