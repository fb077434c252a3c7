import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rac_jax import config as configs
from rac_jax import optimizer

GOLDEN = json.loads((Path(__file__).parent / "golden" / "schedule.json").read_text())


def test_schedule_of_the_places_recipe_step_by_step():
    config = configs.default()
    config.optim.learning_rate, config.train.batch_size = 5e-5, 200
    assert optimizer.steps_per_epoch(62_500, 200) == GOLDEN["recipe"]["updates_per_epoch"] == 313
    assert optimizer.total_steps(config, 62_500) == 9390
    rate = optimizer.schedule(config, 62_500)
    found = [float(rate(step)) for step in GOLDEN["per_update"]["steps"]]
    np.testing.assert_allclose(found, GOLDEN["per_update"]["lr"], rtol=1e-4)


def test_the_rate_at_the_ends_and_in_the_middle():
    config = configs.default()
    config.optim.update(dict(learning_rate=0.8, min_learning_rate=0.2, warmup_epochs=2.0))
    config.train.batch_size, config.train.epochs = 20, 6.0
    rate = optimizer.learning_rate(config, 100)  # 5 steps an epoch
    expected = [0.2, 0.5, 0.8, 0.5, 0.2, 0.2]
    np.testing.assert_allclose([rate(step) for step in (0, 5, 10, 20, 30, 40)], expected, atol=1e-6)


def params():
    return {
        "base": {
            "class_token": jnp.ones((1, 1, 4)),
            "position_embedding": jnp.ones((1, 5, 4)),
            "block": {"kernel": jnp.ones((4, 4)), "bias": jnp.ones(4)},
        },
        "base_head": {"kernel": jnp.ones((4, 3)), "bias": jnp.ones(3)},
        "text": {"kernel": jnp.ones((4, 4)), "norm": {"scale": jnp.ones(4)}},
        "text_head": {"kernel": jnp.ones((4, 3)), "bias": jnp.ones(3)},
    }


def test_what_decays():
    mask = optimizer.decayed(params())
    assert mask["base"] == {
        "class_token": False,
        "position_embedding": False,
        "block": {"kernel": True, "bias": False},
    }
    assert mask["text"] == {"kernel": True, "norm": {"scale": False}}
    assert mask["text_head"] == {"kernel": True, "bias": False}


def test_one_step_of_adamw_decay_clipping_and_the_rates_of_b_and_t():
    config = configs.default()
    config.optim.update(dict(learning_rate=0.1, weight_decay=0.5, warmup_epochs=0.0, clip=1.0))
    config.optim.base_learning_rate_factor, config.optim.text_learning_rate_factor = 2.0, 3.0
    config.train.epochs = 1000.0
    tx = optimizer.from_config(config, 200)
    start = params()
    new, _ = optimizer.update(tx, start, tx.init(start), start)  # a gradient of ones everywhere
    # Adam's first step is the sign of the gradient, whatever the clipping; decay adds 0.5 · 1.
    assert new["base"]["block"]["bias"][0] == pytest.approx(1 - 0.2, rel=1e-4)
    assert new["base"]["block"]["kernel"][0, 0] == pytest.approx(1 - 0.3, rel=1e-4)
    assert new["base_head"]["bias"][0] == pytest.approx(1 - 0.1, rel=1e-4)
    assert new["text"]["kernel"][0, 0] == pytest.approx(1 - 0.45, rel=1e-4)
    assert new["text_head"]["bias"][0] == pytest.approx(1 - 0.3, rel=1e-4)


def test_two_steps_of_sgd_with_momentum_decay_and_the_rate_of_b():
    config = configs.default()
    config.optim.update(dict(name="sgd", learning_rate=0.1, weight_decay=0.5, warmup_epochs=0.0, clip=1e9, beta1=0.9))
    config.optim.base_learning_rate_factor, config.train.epochs = 2.0, 1e6
    tx, start = optimizer.from_config(config, 200), params()
    once, state = optimizer.update(tx, start, tx.init(start), start)  # a gradient of ones everywhere
    twice, _ = optimizer.update(tx, start, state, once)
    assert once["base_head"]["bias"][0] == pytest.approx(0.9) and twice["base_head"]["bias"][0] == pytest.approx(0.71)
    assert once["base"]["block"]["bias"][0] == pytest.approx(0.8)
    kernel = [tree["base"]["block"]["kernel"][0, 0] for tree in (once, twice)]
    assert kernel[0] == pytest.approx(1 - 0.2 * 1.5)
    assert kernel[1] == pytest.approx(0.7 - 0.2 * (0.9 * 1.5 + 1 + 0.5 * 0.7))


def test_the_groups_share_one_tree_of_moments():
    """A tree for each group, with gaps for the others' parameters, made dispatching a step twice as slow."""
    tx = optimizer.from_config(configs.default(), 200)
    state = jax.tree.structure(tx.init(params() | {"logit_scale": jnp.float32(1.0)}))
    assert state.num_nodes < 4 * jax.tree.structure(params()).num_nodes


def test_many_steps_are_those_of_optax_and_the_state_has_the_names_of_the_parameters():
    config = configs.default()
    config.optim.update(dict(learning_rate=0.1, weight_decay=0.5, warmup_epochs=0.0, clip=1e9))
    tx, rate = optimizer.from_config(config, 200), optimizer.schedule(config, 200)
    plain = optax.adamw(rate, 0.9, 0.999, 1e-8, weight_decay=0.5, mask=optimizer.decayed)
    ours = theirs = params()
    our_state, their_state = tx.init(ours), plain.init(theirs)
    draw = np.random.default_rng(0)
    for _ in range(5):
        grads = jax.tree.map(lambda leaf: jnp.asarray(draw.normal(size=leaf.shape), jnp.float32), ours)
        ours, our_state = optimizer.update(tx, grads, our_state, ours)
        theirs, their_state = optimizer.update(plain, grads, their_state, theirs)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), ours, theirs)
    for moment in ("mu", "nu"):
        found = {name: array for name, array in moments(our_state).items() if moment in name}
        assert sorted(name.split(f".{moment}.")[1] for name in found) == sorted(moments(params()))


def moments(state):
    """The arrays of a state that are no counts, by dotted path."""
    leaves = jax.tree.leaves_with_path(state)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves if leaf.ndim}


def test_a_learned_scale_moves_ten_times_faster_than_a_weight():
    config = configs.default()
    config.optim.update(dict(learning_rate=0.1, weight_decay=0.5, warmup_epochs=0.0))
    start = params() | {"logit_scale": jnp.float32(1.0)}
    tx = optimizer.from_config(config, 200)
    new, _ = optimizer.update(tx, start, tx.init(start), start)
    assert float(new["logit_scale"]) == pytest.approx(1 - 10 * 0.1, abs=1e-5)
    assert float(new["base_head"]["bias"][0]) == pytest.approx(1 - 0.1, rel=1e-4)


def test_what_is_frozen_stays_as_it_is_without_decay_and_the_rest_moves():
    config = configs.default()
    config.optim.update(dict(learning_rate=0.1, weight_decay=0.5, warmup_epochs=0.0))
    config.optim.frozen = r"base\.(class_token|block\.k)"
    mask = optimizer.not_trained(config, params())
    assert mask["base"] == {"class_token": True, "position_embedding": False, "block": {"kernel": True, "bias": False}}
    assert not any(jax.tree.leaves((mask["text"], mask["text_head"])))
    tx, start = optimizer.from_config(config, 200), params()
    state = tx.init(start)
    assert sorted(name.rpartition(".mu.")[2] for name in moments(state) if ".mu.base." in name) == [
        "base.block.bias",
        "base.position_embedding",
    ]  # what is frozen has no moments
    new, _ = optimizer.update(tx, start, state, start)
    assert (new["base"]["block"]["kernel"] == 1).all() and (new["base"]["class_token"] == 1).all()
    assert (new["base"]["block"]["bias"] < 1).all() and (new["text"]["kernel"] < 1).all()


@pytest.mark.parametrize("pattern, number", [("stem", "no"), (".", "every")])
def test_a_pattern_that_freezes_nothing_or_everything_is_refused(pattern, number):
    config = configs.default()
    config.optim.frozen = pattern
    with pytest.raises(configs.ConfigError, match=rf"config\.optim\.frozen='{pattern}' matches {number} parameter"):
        optimizer.not_trained(config, params())
    mask = optimizer.not_trained(config, params(), some=True)  # of a run that has others
    assert set(jax.tree.leaves(mask)) == {number == "every"}


def test_a_pattern_for_a_branch_that_is_not_there_freezes_nothing():
    config = configs.default()
    config.model.voices, config.optim.frozen = "text", r"base\.stem"
    without_base = {name: tree for name, tree in params().items() if name.startswith("text")}
    assert not any(jax.tree.leaves(optimizer.not_trained(config, without_base)))
    config.optim.frozen = "steam"
    with pytest.raises(configs.ConfigError, match="matches no parameter"):
        optimizer.not_trained(config, without_base)


def test_clipping_by_the_global_norm():
    config = configs.default()
    config.optim.update(dict(epsilon=1e6, weight_decay=0.0, learning_rate=1e6, warmup_epochs=0.0))
    start = {"base": {"a": jnp.zeros(1), "b": jnp.zeros(1)}}
    tx = optimizer.from_config(config, 200)
    grads = {"base": {"a": jnp.array([30.0]), "b": jnp.array([40.0])}}
    new, _ = optimizer.update(tx, grads, tx.init(start), start)
    # With a huge epsilon Adam's step is the gradient itself: 3-4-5 scaled to norm 1.
    np.testing.assert_allclose(new["base"]["a"], [-0.6], rtol=1e-4)
    np.testing.assert_allclose(new["base"]["b"], [-0.8], rtol=1e-4)
