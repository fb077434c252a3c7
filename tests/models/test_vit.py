"""ViT from every kind of file against timm and transformers, at the file's and at another image size."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from rac_jax import models
from rac_jax.weights import vit_names
from tests import pretrained

GOLDEN = pathlib.Path(__file__).parent.parent / "golden"
AUGREG, TIMM, HF = "vit_augreg_npz/vit.npz", "vit_timm/model.safetensors", "vit_hf"
HEADS = {AUGREG: ("head/kernel", "head/bias"), TIMM: ("head.weight", "head.bias")}
SIZES = {"width": 64, "depth": 3, "heads": 4, "image_size": 64}


def load(file, **overrides):
    path = file if isinstance(file, pathlib.Path) else GOLDEN / file
    return pretrained.load(nnx.eval_shape(lambda: models.create("vit_b16", **{**SIZES, **overrides})), path)


@nnx.jit
def run(model, images):
    return model(images)


@pytest.mark.parametrize("file", [AUGREG, TIMM])
def test_logits_features_and_every_block_equal_timm(file):
    io = np.load((GOLDEN / file).parent / "io.npz")
    model, head = load(file), pretrained.head(GOLDEN / file, *HEADS[file])

    @nnx.jit
    def stages(model, images):
        x = [model.embed(images)]
        for block in model.blocks:
            x.append(block(x[-1]))
        return x, model.final_norm(x[-1]), model(images)

    outputs, tokens, features = stages(model, jnp.asarray(io["images"]))
    np.testing.assert_allclose(outputs[0], io["embedded"], atol=1e-4)
    np.testing.assert_allclose(jnp.stack(outputs[1:]), io["blocks"], atol=1e-4)
    np.testing.assert_allclose(tokens, io["tokens"], atol=1e-4)
    np.testing.assert_allclose(features, io["features"], atol=1e-4)
    np.testing.assert_allclose(head(features), io["logits"], atol=1e-4)


def test_hugging_face_folder():
    io = np.load(GOLDEN / HF / "io.npz")
    features = run(load(HF, epsilon=1e-12), jnp.asarray(io["images"]))
    np.testing.assert_allclose(features, io["features"], atol=1e-4)


def test_the_tanh_layer_of_vit_jax_is_left_out(tmp_path):
    io = np.load(GOLDEN / "vit_augreg_npz" / "io.npz")
    layer = np.load(GOLDEN / "vit_augreg_npz" / "pre_logits.npz")
    np.savez(tmp_path / "vit.npz", **np.load(GOLDEN / AUGREG), **layer)
    dropped = run(load(tmp_path / "vit.npz"), jnp.asarray(io["images"]))
    np.testing.assert_allclose(dropped, io["features"], atol=1e-4)


def test_positions_are_resampled_for_a_larger_image():
    io = np.load(GOLDEN / "vit_augreg_npz" / "io_96.npz")
    features = run(load(AUGREG, image_size=96), jnp.asarray(io["images"]))
    np.testing.assert_allclose(features, io["features"], atol=1e-4)


@pytest.mark.parametrize("side", [3, 14])
def test_the_resampled_table_equals_timm(side):
    io = np.load(GOLDEN / "vit_augreg_npz" / "io_96.npz")
    table = np.load(GOLDEN / AUGREG)["Transformer/posembed_input/pos_embedding"][0]
    resampled = vit_names.resample_positions(table, 1 + side * side)
    np.testing.assert_allclose(resampled, io[f"pos_embedding_{side}x{side}_bicubic_antialias"][0], atol=1e-6)


def test_a_grid_that_is_no_square_cannot_be_resampled():
    with pytest.raises(ValueError, match="position embeddings for 8 tokens cannot be resampled to 17"):
        vit_names.resample_positions(np.zeros((8, 4), np.float32), 17)


def test_bfloat16_keeps_the_direction_of_the_features():
    io = np.load(GOLDEN / "vit_augreg_npz" / "io.npz")
    features = run(load(AUGREG, dtype=jnp.bfloat16), jnp.asarray(io["images"]))
    assert features.dtype == jnp.float32
    norms = np.linalg.norm(features, axis=1) * np.linalg.norm(io["features"], axis=1)
    assert (np.sum(features * io["features"], axis=1) / norms).min() > 0.999


def test_stochastic_depth_does_not_depend_on_the_sharding():
    model, key = load(TIMM, drop_path=0.5), jax.random.key(1)
    images = jnp.asarray(np.random.default_rng(0).normal(size=(8, 64, 64, 3)), jnp.float32)
    train = nnx.jit(lambda model, x: model(x, train=True, keys=jax.random.split(key, 8)))
    whole = train(model, images)
    assert float(jnp.abs(whole - run(model, images)).max()) > 1e-2
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    graph, state = nnx.split(model)
    model = nnx.merge(graph, jax.device_put(state, everywhere))
    np.testing.assert_allclose(train(model, jax.device_put(images, sharding)), whole, atol=1e-5)


def test_remat_changes_no_gradient():
    images = jnp.asarray(np.load(GOLDEN / "vit_timm" / "io.npz")["images"])

    @nnx.jit
    def gradient(model):
        return nnx.grad(
            lambda m: jnp.sum(m(images, train=True, keys=jax.random.split(jax.random.key(0), len(images))) ** 2)
        )(model)

    sizes = {"width": 32, "heads": 2, "depth": 2, "image_size": 64, "drop_path": 0.2}
    plain = nnx.to_pure_dict(gradient(models.create("vit_b16", **sizes)))
    saving = nnx.to_pure_dict(gradient(models.create("vit_b16", remat=True, **sizes)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), plain, saving)


def test_sizes_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match="image_size=100 is not a multiple of the patch size 16"):
        models.create("vit_b16", image_size=100)
    with pytest.raises(ValueError, match="heads=5 does not divide width=64"):
        models.create("vit_b16", width=64, heads=5, depth=1, image_size=32)
    model = nnx.eval_shape(lambda: models.create("vit_b16", **SIZES))
    with pytest.raises(ValueError, match="made with image_size=64"):
        nnx.eval_shape(lambda m: m(jnp.zeros((1, 96, 96, 3))), model)
    with pytest.raises(ValueError, match="activation='relu7' is unknown"):
        nnx.eval_shape(lambda: models.create("vit_b16", activation="relu7", **SIZES)(jnp.zeros((1, 64, 64, 3))))
