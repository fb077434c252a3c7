"""Values and gradients against reference losses computed in float64."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rac_jax import config as configs
from rac_jax import losses, rules

GOLDEN = np.load(Path(__file__).parent / "golden" / "losses.npz")
COUNTS = GOLDEN["class_counts"]

CASES = {
    "ce": ("ce", 1.0, "none"),
    "lace_tau1": ("lace", 1.0, "none"),
    "lace_tau0.5": ("lace", 0.5, "none"),
    "balce": ("balce", 1.0, "none"),
    "lace_inverse_sqrt": ("lace", 1.0, "inverse_sqrt"),
    "lace_inverse_log": ("lace", 1.0, "inverse_log"),
}


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradient(case, smoothing):
    name, tau, reweight = CASES[case]
    terms = losses.terms(name, COUNTS, tau=tau, reweight=reweight)
    key = case + ("_smooth0.1" if smoothing else "")
    labels = jnp.asarray(GOLDEN["labels"], jnp.int32)

    def mean_loss(logits):
        each = losses.general(logits, labels, terms, smoothing)
        return each.mean(), each

    (loss, each), grad = jax.value_and_grad(mean_loss, has_aux=True)(jnp.asarray(GOLDEN["logits"]))
    np.testing.assert_allclose(each, GOLDEN[f"{key}/per_sample"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(loss, GOLDEN[f"{key}/loss"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(grad, GOLDEN[f"{key}/grad"], rtol=1e-5, atol=1e-6)


def test_ldam_with_the_papers_sign_raises_the_logit_of_the_true_class():
    lowered, raised = (losses.terms(name, COUNTS, tau=1.0, reweight="none") for name in ("ldam", "ldam_paper"))
    np.testing.assert_array_equal(raised.margin, -lowered.margin)
    logits, labels = jnp.zeros((1, len(COUNTS))), jnp.zeros(1, int)
    by_hand = -jax.nn.log_softmax(logits.at[0, 0].add(lowered.margin[0]))[0, 0]
    np.testing.assert_allclose(losses.general(logits, labels, raised)[0], by_hand, rtol=1e-5)


def test_ldam_and_its_gradient():
    terms = losses.terms("ldam", COUNTS, tau=1.0, reweight="none")
    np.testing.assert_allclose(terms.margin, 30 * GOLDEN["ldam/margins"], rtol=1e-6)
    labels = jnp.asarray(GOLDEN["labels"], jnp.int32)

    def mean_loss(cosines):
        each = losses.general(30 * cosines, labels, terms)
        return each.mean(), each

    (loss, each), grad = jax.value_and_grad(mean_loss, has_aux=True)(jnp.asarray(GOLDEN["cosine_logits"]))
    np.testing.assert_allclose(each, GOLDEN["ldam/per_sample"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(loss, GOLDEN["ldam/loss"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(grad, GOLDEN["ldam/grad"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["ldam", "ldam_paper"])
@pytest.mark.parametrize("voices, scale", [("base", 30), ("prototype", 25), ("vote+prototype", 25), ("text+vote", 30)])
def test_margins_are_in_the_cosines_of_the_only_voice_that_is_trained(name, voices, scale):
    config = configs.default()
    config.loss.name, config.model.voices, config.model.fusion = name, voices, "sum"
    rules.validate(config, devices=1)
    margin = scale * GOLDEN["ldam/margins"] * (1 if name == "ldam" else -1)
    np.testing.assert_allclose(losses.from_config(config, COUNTS).margin, margin, rtol=1e-6)


@pytest.mark.parametrize("kind", ["none", "inverse", "inverse_sqrt", "inverse_log"])
def test_weights_have_mean_one_over_the_training_images(kind):
    weights = losses.class_weights(COUNTS, kind)
    assert (weights * COUNTS).sum() == pytest.approx(COUNTS.sum(), rel=1e-6)
    golden = {"inverse": "balanced"}.get(kind, kind)
    if kind != "none":
        np.testing.assert_allclose(weights, GOLDEN[f"weights/{golden}"], rtol=1e-6)


def test_a_class_without_images_or_with_one_gives_finite_terms():
    for kind in ("inverse", "inverse_sqrt", "inverse_log"):
        assert np.isfinite(losses.class_weights(np.array([10, 1, 0]), kind)).all()
    assert np.isfinite(losses.adjustment(np.array([10, 1, 0]), 1.0)).all()
    np.testing.assert_allclose(losses.margins(np.array([16, 1, 0])), [7.5, 15, 15])


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="lace, ce, balce, ldam, ldam_paper"):
        losses.terms("focal", COUNTS, tau=1.0, reweight="none")
    with pytest.raises(ValueError, match="inverse_sqrt"):
        losses.class_weights(COUNTS, "cubic")


def test_balce_has_its_own_weights_and_refuses_others():
    config = configs.default()
    config.loss.name, config.loss.reweight = "balce", "inverse_sqrt"
    with pytest.raises(configs.ConfigError, match=r"config\.loss\.reweight is 'inverse_sqrt'; it must be none with"):
        rules.validate(config, devices=8)
    with pytest.raises(ValueError, match=r"loss\.reweight is 'inverse_sqrt'"):
        losses.terms("balce", np.array([3, 1]), tau=1.0, reweight="inverse_sqrt")
