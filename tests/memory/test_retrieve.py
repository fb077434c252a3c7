"""The compiled program with real FAISS lookups on simulated devices."""

import dataclasses
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rac_jax import config as configs
from rac_jax import sharding
from rac_jax.memory import retrieve
from rac_jax.memory.lookup import Lookup, LookupFailed
from tests.memory.conftest import make


def mean_colour_encoder(parameters, images):
    """Stands in for E: flattens the first pixels and projects them to 8 numbers."""
    return images[:, 0, 0:8, 0].astype(jnp.float32) @ parameters["kernel"]


def mesh_of(devices):
    config = configs.default()
    config.mesh.data = devices
    return sharding.make_mesh(config)


def images_of(keys):
    """uint8 images whose 'key' is nearly the given one."""
    pixels = np.zeros((len(keys), 4, 8, 3), np.uint8)
    pixels[:, 0, :, 0] = np.clip(np.rint(127 + 60 * keys), 0, 255)
    return pixels


PARAMETERS = {"kernel": jnp.eye(8, dtype=jnp.float32)}


@pytest.mark.parametrize("devices", [1, 2, 8])
def test_neighbours_are_those_of_a_direct_search_on_any_number_of_devices(memory, snippets, keys, devices):
    lookup = Lookup(memory, snippets, 5, 64, "id")
    mesh = mesh_of(devices)
    own = np.arange(40, dtype=np.int32)
    placed = sharding.put_batch(mesh, {"image": images_of(keys), "own": own})
    found = retrieve.create(mean_colour_encoder, lookup, mesh)(PARAMETERS, placed["image"], placed["own"])
    expected = lookup.search(np.asarray(mean_colour_encoder(PARAMETERS, images_of(keys))), own)
    for name, values in found.items():
        np.testing.assert_array_equal(values, getattr(expected, name))
        assert values.sharding.is_equivalent_to(sharding.batch(mesh), values.ndim)
    lookup.check()


def test_each_device_asks_for_its_own_part_of_the_batch(memory, snippets, keys):
    sizes = []

    class Spy(Lookup):
        def callback(self, queries, own):
            sizes.append(len(queries))
            return super().callback(queries, own)

    mesh = mesh_of(8)
    placed = sharding.put_batch(mesh, {"image": images_of(keys), "own": np.full(40, -1, np.int32)})
    program = retrieve.create(mean_colour_encoder, Spy(memory, snippets, 5, 64, "none"), mesh)
    jax.block_until_ready(program(PARAMETERS, placed["image"], placed["own"]))
    assert sizes == [5] * 8


def test_300_unblocked_iterations_do_not_deadlock(tmp_path, snippets):
    """Retrieve and a step with a collective, queued without waiting; each device's keys above 100 KiB."""
    width, batch = 1280, 192
    keys = np.random.default_rng(0).normal(size=(400, width)).astype(np.float32)
    lookup = Lookup(make(tmp_path / "m", keys), snippets, 5, 64, "id")
    mesh = mesh_of(8)
    assert batch // 8 * width * 4 > 100 * 1024
    images = np.random.default_rng(1).integers(0, 255, (batch, 20, 32, 3), dtype=np.uint8)
    own = np.arange(batch, dtype=np.int32)
    placed = sharding.put_batch(mesh, {"image": images, "own": own})

    def encoder(parameters, pixels):
        flat = pixels.reshape(pixels.shape[0], -1)[:, :width].astype(jnp.float32)
        return flat - parameters["mean"]

    parameters = {"mean": jnp.float32(127)}
    program = retrieve.create(encoder, lookup, mesh)

    @jax.jit
    def step(total, found):
        return total + found["tokens"].sum() % 97 + found["rows"].sum() % 89

    total = sharding.put_replicated(mesh, jnp.int32(0))
    started = time.monotonic()
    for _ in range(300):
        total = step(total, program(parameters, placed["image"], placed["own"]))
    expected = lookup.search(np.asarray(encoder(parameters, images)), own)
    assert int(total) == 300 * (int(expected.tokens.sum()) % 97 + int(expected.rows.sum()) % 89)
    assert time.monotonic() - started < 120
    lookup.check()


def test_an_error_inside_the_callback_is_one_clear_exception(memory, snippets, keys):
    lookup = Lookup(memory, snippets, 5, 64, "none")
    mesh = mesh_of(8)
    placed = sharding.put_batch(mesh, {"image": images_of(keys), "own": np.full(40, -1, np.int32)})
    program = retrieve.create(lambda p, x: mean_colour_encoder(p, x)[:, :6], lookup, mesh)
    started = time.monotonic()
    found = program(PARAMETERS, placed["image"], placed["own"])
    assert (np.asarray(found["rows"]) == -1).all()
    with pytest.raises(LookupFailed, match=r"6 numbers but the memory's keys have 8.*another encoder"):
        lookup.check()
    assert time.monotonic() - started < 30


def test_an_index_that_breaks_while_running(memory, snippets, keys):
    class Gone:
        d, metric_type, ntotal = 8, 0, 40

        def search(self, *_, **__):
            raise OSError("index file is gone")

    lookup = Lookup(dataclasses.replace(memory, index=Gone()), snippets, 5, 64, "none")
    mesh = mesh_of(8)
    placed = sharding.put_batch(mesh, {"image": images_of(keys), "own": np.full(40, -1, np.int32)})
    jax.block_until_ready(
        retrieve.create(mean_colour_encoder, lookup, mesh)(PARAMETERS, placed["image"], placed["own"])
    )
    with pytest.raises(LookupFailed, match="index file is gone"):
        lookup.check()
