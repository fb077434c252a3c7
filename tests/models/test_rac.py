"""The fusion against reference values and gradients."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from rac_jax import losses
from rac_jax.models import rac

GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "losses.npz")
A, B = jnp.asarray(GOLDEN["fusion/a"]), jnp.asarray(GOLDEN["fusion/b"])


def make(base, text, num_classes, **settings):
    return rac.RAC(base, text, num_classes=num_classes, settings=rac.VoiceSettings(**settings), rngs=nnx.Rngs(0))


def assert_close(found, expected):
    """Relative to each row's largest number: rows differ in size by 1e6."""
    size = np.abs(expected).max(axis=-1, keepdims=True)
    assert np.max(np.abs(np.asarray(found) - expected) / size) < 1e-5


@pytest.mark.parametrize("name, scale", [("half", "paper"), ("sqrt", "sqrt")])
def test_fusion_and_its_gradients(name, scale):
    factor = jnp.float32(rac.fusion_scale(scale, 12))
    assert factor == pytest.approx(float(GOLDEN[f"fusion/{name}/scale"]))
    out, vjp = jax.vjp(lambda a, b: rac.fuse(a, b, factor), A, B)
    assert_close(out, GOLDEN[f"fusion/{name}/out"])
    for found, side in zip(vjp(jnp.asarray(GOLDEN["fusion/cotangent"])), "ab", strict=True):
        assert_close(found, GOLDEN[f"fusion/{name}/vjp_{side}"])


@pytest.mark.parametrize("name, scale", [("half", 6.0), ("sqrt", 12**0.5 / 2)])
def test_lace_on_top(name, scale):
    terms = losses.terms("lace", GOLDEN["class_counts"], tau=1.0, reweight="none")
    labels = jnp.asarray(GOLDEN["labels"], jnp.int32)

    def loss(a, b):
        fused = rac.fuse(a, b, jnp.float32(scale))
        return losses.general(fused, labels, terms, 0.1).mean()

    value, (grad_a, grad_b) = jax.value_and_grad(loss, argnums=(0, 1))(A, B)
    assert value == pytest.approx(float(GOLDEN[f"fusion/{name}/lace_loss"]), rel=1e-5)
    assert_close(grad_a, GOLDEN[f"fusion/{name}/lace_grad_a"])
    assert_close(grad_b, GOLDEN[f"fusion/{name}/lace_grad_b"])


def test_zero_logits_give_zero_and_a_finite_gradient():
    zero = jnp.zeros((1, 4))
    out, vjp = jax.vjp(lambda a: rac.fuse(a, zero, jnp.float32(2.0)), zero)
    assert (out == 0).all() and np.isfinite(vjp(jnp.ones((1, 4)))[0]).all()


def test_a_cosine_head_gives_scaled_cosines():
    head = rac.CosineHead(3, 2, rngs=nnx.Rngs(0))
    head.kernel[...] = jnp.array([[2.0, 0.0], [0.0, 3.0], [0.0, 4.0]])
    np.testing.assert_allclose(
        head(jnp.array([[5.0, 0.0, 0.0], [0.0, 7.0, 0.0]])), [[30.0, 0.0], [0.0, 18.0]], rtol=1e-6
    )
    head.scale = 25.0
    np.testing.assert_allclose(head(jnp.array([[0.0, 7.0, 0.0]])), [[0.0, 15.0]], rtol=1e-6)


def test_a_learned_scale_starts_at_half_the_root():
    model = make(Constant(), Constant(), num_classes=16, scale="learned")
    assert model.scale() == pytest.approx(2.0)
    model.logit_scale[...] += 1.0
    assert model.scale() == pytest.approx(2.0 * np.e)


@pytest.mark.parametrize(
    "settings, expected",
    [
        ({}, {"rac": 1.0}),
        ({"own_loss": 0.5}, {"rac": 1.0, "base": 0.5, "text": 0.5}),
        ({"own_loss": 0.5, "speaking": ("text",)}, {"text": 1.0}),
        ({"own_loss": 0.5, "fusion": "sum"}, {"base": 1.0, "text": 1.0}),
    ],
)
def test_what_has_a_loss(settings, expected):
    assert make(Constant(), Constant(), num_classes=2, **settings).trained == expected


def test_inside_rac_a_voice_believes_by_the_direction_of_its_logits():
    model = make(None, Constant(), num_classes=2, speaking=("text",))
    own = model.probabilities({"text": jnp.array([[0.0, jnp.log(3.0)]])})
    np.testing.assert_allclose(own["text"], [[0.25, 0.75]], rtol=1e-6)
    model = make(Constant(), Constant(), num_classes=2, scale="paper")  # scale L/2 = 1
    logits = {"base": jnp.array([[0.0, 50.0]]), "text": jnp.array([[0.1, 0.0]]), "rac": jnp.array([[1.0, 1.0]])}
    found = model.probabilities(logits)
    sure = np.e / (1 + np.e)
    np.testing.assert_allclose(found["rac"], [[0.5, 0.5]], rtol=1e-6)
    np.testing.assert_allclose(found["base"], [[1 - sure, sure]], rtol=1e-6)
    np.testing.assert_allclose(found["text"], [[sure, 1 - sure]], rtol=1e-6)


class Constant(nnx.Module):
    """An encoder that sees nothing."""

    feature_width = 3

    def __call__(self, inputs):
        return jnp.ones((len(inputs), 3))
