"""First parameters, made on the mesh: the values of a plain start, and the file's where there is one."""

import jax
import numpy as np
import pytest
from flax import nnx

from rac_jax import models, optimizer, sharding, train
from rac_jax.run import Run
from rac_jax.start import values
from rac_jax.weights import parameters
from tests import tiny


def make():
    return models.create("clip_text", width=32, depth=1, heads=2, projection=32, vocab_size=4096)


def places(devices, fsdp):
    config = tiny.config(devices=devices)
    config.mesh.fsdp = fsdp
    shapes = nnx.to_pure_dict(nnx.state(nnx.eval_shape(make)))
    return sharding.shardings(sharding.state(sharding.make_mesh(config), shapes))


@pytest.fixture(scope="module")
def plain():
    return parameters.flat(nnx.to_pure_dict(nnx.state(make())))


def assert_close(found, expected):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-8), found, expected)


@pytest.mark.parametrize("devices, fsdp", [(1, 1), (1, 8)])
def test_drawn_on_any_mesh_they_are_those_of_a_plain_start(plain, devices, fsdp):
    (found,) = parameters.place(make, {}, places(devices, fsdp))
    assert_close(parameters.flat(found), plain)
    assert found["token_embedding"].addressable_shards[0].data.shape == (4096 // fsdp, 32)


def test_no_device_holds_a_complete_array_while_its_shard_is_drawn(monkeypatch):
    used, compile_for = [], jax.jit

    def measured(program, **options):
        compiled = compile_for(program, **options).lower().compile()
        used.append(compiled)
        return compiled

    where = places(1, 8)
    monkeypatch.setattr(jax, "jit", measured)
    (found,) = parameters.place(make, {}, where)
    (program,) = used
    assert "[512,32]" in program.as_text() and "[4096,32]" not in program.as_text()
    mine = sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(found))
    memory = program.memory_analysis()
    assert mine < 0.2 * sum(leaf.nbytes for leaf in jax.tree.leaves(found))
    assert (
        memory.output_size_in_bytes + memory.temp_size_in_bytes < 4 * mine
    )  # random bits take two or three such arrays


def test_given_arrays_are_taken_and_need_not_outlive_the_call(plain):
    given = {"token_embedding": np.arange(4096 * 32, dtype=np.float64).reshape(4096, 32)}
    (found,) = parameters.place(make, given, places(1, 8))
    given["token_embedding"][:] = -1
    shards = found["token_embedding"].addressable_shards
    assert [shard.data[0, 0] for shard in shards] == [512 * 32 * i for i in range(8)]
    others = {path: array for path, array in parameters.flat(found).items() if path not in given}
    assert_close(others, {path: plain[path] for path in others})


def test_a_system_holds_shapes_and_a_state_has_the_weights_of_files(tmp_path):
    config = tiny.config("base")
    config.model.base.update(dict.fromkeys(tiny.TINY_VIT, 0))
    config.model.base.name = "efficientnet_lite0"
    config.model.base.weights = config.model.encoder.weights
    parts = Run.from_config(config, tmp_path)
    assert {type(leaf) for leaf in jax.tree.leaves(parameters.split(parts.model)[1])} == {jax.ShapeDtypeStruct}
    tx = optimizer.from_config(config, 466)
    state, like = train.initial_state(parts, tx), train.abstract_state(parts, tx)
    assert jax.tree.structure(state) == jax.tree.structure(like)
    jax.tree.map(lambda a, b: (a.shape, a.dtype, a.sharding) == (b.shape, b.dtype, b.sharding) or 1 / 0, state, like)
    read = values.given(parts)
    np.testing.assert_array_equal(state.params["base"]["top"]["kernel"], read["base.top.kernel"])
    np.testing.assert_array_equal(state.stats["base"]["top"]["norm"]["mean"], read["base.top.norm.mean"])
    assert 0.01 < np.std(state.params["base_head"]["kernel"]) < 1
