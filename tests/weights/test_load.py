"""Strict merging: everything fits, or the error says what does not and nothing has changed."""

import pathlib
import time
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from rac_jax import models, weights
from rac_jax.weights import merging
from tests import pretrained

GOLDEN = pathlib.Path(__file__).parent.parent / "golden"
VIT = GOLDEN / "vit_timm" / "model.safetensors"
SIZES = {"width": 64, "depth": 3, "heads": 4, "image_size": 64}


def vit(**overrides):
    return models.create("vit_b16", **{**SIZES, **overrides})


def test_a_classifier_in_the_file_is_left_out():
    assert "head.weight" in _file()
    model = pretrained.load(vit(), VIT)
    assert not hasattr(model, "head")
    np.testing.assert_array_equal(model.class_token[...], np.asarray(_file()["cls_token"]).reshape(-1))


def _file():
    return weights.tensor_files.read(VIT)


def test_missing_and_extra_tensors_are_listed():
    model = vit(depth=4)
    with pytest.raises(ValueError, match=r"- blocks\.3\.attention\.out\.bias \(64,\)") as error:
        pretrained.load(model, VIT)
    assert "does not fit ViT" in str(error.value)
    with pytest.raises(ValueError, match=r"\+ blocks\.2\.attention\.out\.bias \(64,\)"):
        pretrained.load(vit(depth=2), VIT)


def test_a_long_list_is_cut():
    with pytest.raises(ValueError, match="… and 16 more"):
        pretrained.load(vit(depth=6), VIT)


@pytest.mark.parametrize("name", ["resnet50", "clip_text", "bert", "efficientnet_lite0"])
def test_the_weights_of_another_kind_of_model(name):
    with pytest.raises(ValueError, match=r"\+ blocks\.0\.attn\.proj\.bias|… and"):
        pretrained.load(nnx.eval_shape(lambda: models.create(name)), VIT)


def test_another_patch_size_is_a_resolution_that_cannot_fit():
    with pytest.raises(ValueError, match=r"! patch_embedding\.kernel: the model has \(192, 64\)"):
        pretrained.load(vit(patch=8), VIT)


def test_heads_and_activation_that_no_shape_shows():
    with pytest.raises(ValueError, match="was trained with 4 heads, the model has heads=8"):
        pretrained.load(vit(heads=8), GOLDEN / "vit_hf")
    with pytest.raises(ValueError, match="trained with activation='gelu', the model has 'quick_gelu'"):
        pretrained.load(vit(activation="quick_gelu"), GOLDEN / "vit_hf")


def test_a_model_without_published_weights():
    with pytest.raises(ValueError, match="no weights files are known for RandomWords"):
        pretrained.load(models.create("random_words"), VIT)


def test_parameters_come_out_float32_from_any_type(tmp_path):
    tensors = {name: np.asarray(array, np.float16) for name, array in _file().items()}
    np.savez(tmp_path / "half.npz", **tensors)
    model = pretrained.load(vit(), tmp_path / "half.npz")
    assert {leaf.dtype for leaf in jax.tree.leaves(nnx.state(model))} == {jnp.dtype("float32")}


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
def test_a_tensor_that_is_not_finite_is_named(tmp_path, value):
    tensors = {name: np.array(array, np.float64) for name, array in _file().items()}
    tensors["blocks.1.mlp.fc1.weight"][3, 5] = value
    np.savez(tmp_path / "bad.npz", **tensors)
    with pytest.raises(ValueError, match=r"bad\.npz: the tensor for blocks\.1\.up\.kernel .* contains NaN or infinite"):
        weights.read(vit(), tmp_path / "bad.npz")


def test_a_tensor_of_another_rank_names_the_file(tmp_path):
    tensors = {name: np.array(array) for name, array in _file().items()}
    tensors["patch_embed.proj.weight"] = np.zeros(5, np.float32)
    np.savez(tmp_path / "flat.npz", **tensors)
    with pytest.raises(ValueError, match=r"flat\.npz does not fit ViT"):
        weights.read(vit(), tmp_path / "flat.npz")


def test_every_parameter_is_found_by_its_path():
    paths = merging.parameters(vit(depth=1))
    assert {"class_token", "position_embedding", "blocks.0.attention.qkv.kernel"} < set(paths)


def test_a_full_sized_file_converts_fast_and_is_not_in_memory_twice(tmp_path):
    """ViT-B/16 in vit_jax's names, whose queries, keys and values have to be joined."""
    tensors = {"cls": (1, 1, 768), "Transformer/posembed_input/pos_embedding": (1, 197, 768)}
    tensors |= {"embedding/kernel": (16, 16, 3, 768), "embedding/bias": (768,)}
    tensors |= {f"Transformer/encoder_norm/{part}": (768,) for part in ("scale", "bias")}
    for i in range(12):
        block = f"Transformer/encoderblock_{i}/"
        attention = block + "MultiHeadDotProductAttention_1/"
        tensors |= {f"{block}LayerNorm_{n}/{part}": (768,) for n in (0, 2) for part in ("scale", "bias")}
        for part in ("query", "key", "value"):
            tensors |= {f"{attention}{part}/kernel": (768, 12, 64), f"{attention}{part}/bias": (12, 64)}
        tensors |= {attention + "out/kernel": (12, 64, 768), attention + "out/bias": (768,)}
        for n, shape in enumerate([(768, 3072), (3072, 768)]):
            tensors |= {f"{block}MlpBlock_3/Dense_{n}/kernel": shape, f"{block}MlpBlock_3/Dense_{n}/bias": shape[1:]}
    path = tmp_path / "full.npz"
    np.savez(path, **{name: np.zeros(shape, np.float32) for name, shape in tensors.items()})
    model = nnx.eval_shape(lambda: models.create("vit_b16"))
    tracemalloc.start()
    start = time.process_time()
    pretrained.load(model, path)
    seconds, peak = time.process_time() - start, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    path_size = path.stat().st_size
    path.unlink()
    assert seconds < 5
    assert peak < 2 * path_size
