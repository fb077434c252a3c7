"""The compiled program with real FAISS lookups on simulated devices."""

import dataclasses
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rac_jax import config as configs
from rac_jax import sharding
from rac_jax.memory import edit, index, manifest, store
from rac_jax.memory.index import device
from rac_jax.retrieval import callback
from rac_jax.retrieval.lookup import KEEP_ALL, Lookup, LookupFailed
from tests.memory.conftest import RECIPE, add, make


def mean_colour_encoder(parameters, images):
    """Stands in for E: flattens the first pixels and projects them to 8 numbers."""
    return images[:, 0, 0:8, 0].astype(jnp.float32) @ parameters["kernel"]


def centred(parameters, images):
    """The same with differences of either sign, which cosine can tell apart."""
    return mean_colour_encoder(parameters, images) - 127


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
    found = callback.through_host(mean_colour_encoder, lookup, mesh)(PARAMETERS, placed["image"], placed["own"])
    queries = np.asarray(mean_colour_encoder(PARAMETERS, images_of(keys)))
    np.testing.assert_array_equal(found.pop("key"), queries)
    expected = lookup.search(queries, own)
    for name, values in found.items():
        np.testing.assert_array_equal(values, getattr(expected, name))
        assert values.sharding.is_equivalent_to(sharding.batch(mesh), values.ndim)
    lookup.check()


@pytest.mark.parametrize("devices, exclude", [(1, "id"), (8, "id"), (8, "first"), (8, "none")])
def test_the_devices_themselves_find_what_flat_finds(tmp_path, keys, snippets, devices, exclude):
    """Exact in float32: with rows that are not allowed, for training and evaluation, on a memory that is padded."""
    for metric in ("cosine", "l2"):
        recipe = {**RECIPE, "index": {"kind": "flat", "metric": metric}}
        make(tmp_path / metric, keys[:37], recipe)
        add(tmp_path / metric, "hidden", keys[3:20] + 0.01)
        with edit.editing(tmp_path / metric) as editor:
            editor.set_state("hidden", manifest.DISABLED)
        memory, mesh = store.read(tmp_path / metric), mesh_of(devices)
        lookup = Lookup(memory, snippets, 5, 64, exclude)
        images, own = images_of(keys), np.where(np.arange(40) % 3, np.arange(40), KEEP_ALL).astype(np.int32)
        placed = sharding.put_batch(mesh, {"image": images, "own": own})
        program = callback.on_device(centred, lookup, mesh, "float32")
        found = program(PARAMETERS, placed["image"], placed["own"])
        expected = lookup.search(np.asarray(centred(PARAMETERS, images)), own)
        np.testing.assert_array_equal(found["rows"], expected.rows)
        np.testing.assert_array_equal(found["tokens"], expected.tokens)
        np.testing.assert_allclose(found["similarities"], expected.similarities, rtol=1e-4, atol=1e-5)
        assert found["rows"].sharding.is_equivalent_to(sharding.batch(mesh), 2)
        assert not np.isin(found["rows"], np.arange(37, 54)).any()


@pytest.mark.parametrize("dtype, rounding", [("bfloat16", 2.0**-8), ("float16", 2.0**-11)])
def test_rounded_keys_on_the_devices_find_neighbours_as_near_as_rounding_allows(tmp_path, snippets, dtype, rounding):
    """A key and a query, each rounded, change a cosine by at most twice the rounding, and a rank by twice that."""
    random = np.random.default_rng(0)
    keys = random.normal(size=(3000, 4)) @ random.normal(size=(4, 32)) + 0.1 * random.normal(size=(3000, 32))
    memory = make(tmp_path / "m", keys.astype(np.float32), {**RECIPE, "index": {"kind": "flat", "metric": "cosine"}})
    lookup = Lookup(memory, snippets, 30, 64, "none")
    mesh, own = mesh_of(8), np.full(80, KEEP_ALL, np.int32)
    queries = keys[::37][:80].astype(np.float32) + 0.05
    placed = sharding.put_batch(mesh, {"image": queries, "own": own})
    found = callback.on_device(lambda _, x: x, lookup, mesh, dtype)({}, placed["image"], placed["own"])
    expected = lookup.search(queries, own)
    true = np.take_along_axis(index.unit(queries) @ memory.keys.T, np.asarray(found["rows"]), axis=1)
    assert (true >= expected.similarities - 4 * rounding).all()
    agreement = np.mean([len(set(a) & set(b)) / 30 for a, b in zip(found["rows"].tolist(), expected.rows, strict=True)])
    assert agreement > 0.9


def test_many_keys_are_compared_in_parts(tmp_path, monkeypatch, snippets):
    keys = np.random.default_rng(0).normal(size=(1000, 8)).astype(np.float32)
    memory = make(tmp_path / "m", keys, {**RECIPE, "index": {"kind": "flat", "metric": "cosine"}})
    lookup = Lookup(memory, snippets, 5, 64, "id")
    monkeypatch.setattr(device, "CHUNK", 64)
    mesh, own = mesh_of(2), np.arange(40, dtype=np.int32)
    placed = sharding.put_batch(mesh, {"image": keys[:40], "own": own})
    found = callback.on_device(lambda _, x: x, lookup, mesh, "float32")({}, placed["image"], placed["own"])
    np.testing.assert_array_equal(found["rows"], lookup.search(keys[:40], own).rows)


def test_each_device_asks_for_its_own_part_of_the_batch(memory, snippets, keys):
    sizes = []

    class Spy(Lookup):
        def callback(self, queries, own):
            sizes.append(len(queries))
            return super().callback(queries, own)

    mesh = mesh_of(8)
    placed = sharding.put_batch(mesh, {"image": images_of(keys), "own": np.full(40, -1, np.int32)})
    program = callback.through_host(mean_colour_encoder, Spy(memory, snippets, 5, 64, "none"), mesh)
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
    program = callback.through_host(encoder, lookup, mesh)

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
    program = callback.through_host(lambda p, x: mean_colour_encoder(p, x)[:, :6], lookup, mesh)
    started = time.monotonic()
    found = program(PARAMETERS, placed["image"], placed["own"])
    assert (np.asarray(found["rows"]) == -1).all()
    with pytest.raises(LookupFailed, match=r"6 numbers but the memory's keys have 8.*another encoder"):
        lookup.check()
    assert time.monotonic() - started < 30


def test_an_index_that_breaks_while_running(memory, snippets, keys):
    class Gone:
        spec, width = {"metric": "cosine"}, 8

        def find(self, *_):
            raise OSError("index file is gone")

    lookup = Lookup(dataclasses.replace(memory, index=Gone()), snippets, 5, 64, "none")
    mesh = mesh_of(8)
    placed = sharding.put_batch(mesh, {"image": images_of(keys), "own": np.full(40, -1, np.int32)})
    jax.block_until_ready(
        callback.through_host(mean_colour_encoder, lookup, mesh)(PARAMETERS, placed["image"], placed["own"])
    )
    with pytest.raises(LookupFailed, match="index file is gone"):
        lookup.check()
