"""CLIP's two towers, DINOv2 and BERT from tiny files of each publisher, against the publisher's own code."""

import pathlib

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from rac_jax import models
from tests import pretrained

GOLDEN = pathlib.Path(__file__).parent.parent / "golden"
TINY = {"width": 32, "depth": 2, "heads": 4, "mlp_width": 64}
OPENAI = {"width": 64, "depth": 1, "heads": 1, "projection": 16}


def run(name, file, inputs, **sizes):
    model = pretrained.load(nnx.eval_shape(lambda: models.create(name, **sizes)), GOLDEN / file)
    return nnx.jit(lambda model, x: model(x))(model, jnp.asarray(inputs))


@pytest.mark.parametrize(("file", "sizes"), [("clip_hf", {**TINY, "projection": 16}), ("clip_openai/ViT.pt", OPENAI)])
def test_both_towers_of_clip(file, sizes):
    io = np.load(GOLDEN / file.split("/")[0] / "io.npz")
    seen = run("clip_image_b16", file, io["images"], image_size=32, **sizes)
    np.testing.assert_allclose(seen, io["image_features"], atol=1e-4)
    ids = io["input_ids"].astype(np.int32)
    read = run("clip_text", file, ids, vocab_size=64, context_length=20, **sizes)
    np.testing.assert_allclose(read, io["text_features"], atol=1e-4)


def test_bert_averages_what_is_not_padding():
    io = np.load(GOLDEN / "bert_hf" / "io.npz")
    features = run("bert", "bert_hf", io["input_ids"].astype(np.int32), vocab_size=64, context_length=40, **TINY)
    np.testing.assert_allclose(features, io["features"], atol=1e-4)


def test_a_bert_for_fewer_tokens_than_the_file_has_positions_reads_the_same():
    io = np.load(GOLDEN / "bert_hf" / "io.npz")
    ids = io["input_ids"].astype(np.int32)
    features = run("bert", "bert_hf", ids, vocab_size=64, context_length=ids.shape[1], **TINY)
    assert ids.shape[1] < 40
    np.testing.assert_allclose(features, io["features"], atol=1e-4)


def test_layer_scale_of_dinov2():
    io = np.load(GOLDEN / "vit_dinov2" / "io.npz")
    sizes = {"width": 32, "depth": 2, "heads": 4}
    features = run("dinov2_b14", "vit_dinov2/model.safetensors", io["images"], image_size=28, **sizes)
    np.testing.assert_allclose(features, io["features"], atol=1e-4)
