"""The voices that are read from the memory, against values computed by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from rac_jax.models import rac, voices
from rac_jax.models.voices import Knowledge, LeftOut, Neighbours

VOTE = {"temperature": 0.5, "tau": 1.0, "epsilon": 1e-3}


def knowledge(keys, labels, classes, offset=0.0):
    keys, labels = np.asarray(keys, np.float32), np.asarray(labels, np.int32)
    counts, sums = np.zeros(classes, np.float32), np.zeros((classes, keys.shape[1]), np.float32)
    np.add.at(counts, labels[labels >= 0], 1)
    np.add.at(sums, labels[labels >= 0], keys[labels >= 0])
    centre = (sums[counts > 0] / counts[counts > 0, None]).mean(axis=0)
    return jax.tree.map(jnp.asarray, Knowledge(counts, sums, centre, labels, np.float32(offset)))


def neighbours(**arrays):
    types = {"key": jnp.float32, "rows": jnp.int32, "similarities": jnp.float32}
    return Neighbours(**{name: jnp.asarray(values, types[name]) for name, values in arrays.items()})


def test_votes_are_weighted_by_similarity_and_divided_by_the_rows_of_a_class():
    known = knowledge(np.eye(4, 3), [0, 0, 0, 1], classes=3)
    found = neighbours(rows=[[0, 3, 1, -1]], similarities=[[1.0, 1.0, 0.5, 0.0]])
    shares = np.exp(np.asarray(voices.vote(found, known, None, **VOTE))) - VOTE["epsilon"]
    votes = np.array([(1 + np.exp(-1.0)) / 3, 1.0, 0.0])  # a missing neighbour and a class without rows say nothing
    np.testing.assert_allclose(shares[0], votes / votes.sum(), atol=1e-6)


def test_in_training_an_image_is_not_counted_in_its_own_class():
    known = knowledge(np.eye(4, 3), [0, 0, 1, 1], classes=2)
    found = neighbours(rows=[[0, 2]], similarities=[[1.0, 1.0]])
    left_out = LeftOut(jnp.array([0]), jnp.array([1.0]), jnp.array([1.0]))
    shares = np.exp(np.asarray(voices.vote(found, known, left_out, **VOTE))) - VOTE["epsilon"]
    np.testing.assert_allclose(shares[0], [2 / 3, 1 / 3], atol=1e-6)


def test_rows_vote_with_their_weights():
    known = knowledge(np.eye(4, 3), [0, 0, 1, 1], classes=2)
    found = neighbours(rows=[[0, 2]], similarities=[[1.0, 1.0]])
    weighted = known.replace(row_weight=jnp.array([0.5, 1.0, 0.25, 0.25]), class_weight=jnp.array([1.5, 0.5]))
    shares = np.exp(np.asarray(voices.vote(found, weighted, None, **VOTE))) - VOTE["epsilon"]
    votes = np.array([0.5 / 1.5, 0.25 / 0.5])
    np.testing.assert_allclose(shares[0], votes / votes.sum(), atol=1e-6)
    alike = known.replace(row_weight=jnp.full(4, 0.3), class_weight=jnp.full(2, 0.6))
    np.testing.assert_allclose(voices.vote(found, alike, None, **VOTE), voices.vote(found, known, None, **VOTE), 1e-5)
    left_out = LeftOut(jnp.array([1]), jnp.array([1.0]), jnp.array([0.25]))
    shares = np.exp(np.asarray(voices.vote(found, weighted, left_out, **VOTE))) - VOTE["epsilon"]
    votes = np.array([0.5 / 1.5, 0.25 / 0.25])
    np.testing.assert_allclose(shares[0], votes / votes.sum(), atol=1e-6)


@pytest.mark.parametrize("unlabelled", [-1.0, -0.5])
def test_a_nearer_row_without_a_label_does_not_silence_those_with_labels(unlabelled):
    """With metric l2 similarities are far apart: weights relative to the nearest row of all would be too small."""
    known = knowledge(np.eye(4, 3), [0, 1, -1, -1], classes=2)
    found = neighbours(rows=[[2, 0, 1]], similarities=[[unlabelled, -5.0, -5.5]])
    logits = voices.vote(found, known, None, **VOTE | {"temperature": 0.05})
    np.testing.assert_allclose(np.exp(logits)[0] - VOTE["epsilon"], [1.0, np.exp(-10.0)], rtol=1e-2, atol=1e-5)


def test_no_neighbour_at_all_is_no_opinion():
    known = knowledge(np.eye(2), [0, 1], classes=2)
    logits = voices.vote(neighbours(rows=[[-1, -1]], similarities=[[0.0, 0.0]]), known, None, **VOTE)
    np.testing.assert_allclose(jax.nn.softmax(logits), [[0.5, 0.5]])


@pytest.fixture
def prototype():
    return voices.Prototype(3, 2, scale=10.0, rank=2, rngs=nnx.Rngs(0))


def test_a_prototype_is_the_cosine_to_the_mean_key_of_a_class(prototype):
    keys = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    known = knowledge(keys, [0, 0, 1], classes=2)
    found = neighbours(key=[[1.0, 0.0, 0.0]])
    means = np.array([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])
    query, heads = keys[0] - means.mean(axis=0), means - means.mean(axis=0)
    cosines = heads @ query / np.linalg.norm(heads, axis=1) / np.linalg.norm(query)
    np.testing.assert_allclose(prototype(found, known, None)[0], 10.0 * cosines, rtol=1e-5)


def test_a_new_class_works_without_a_correction_and_a_class_without_rows_is_never_chosen(prototype):
    known = knowledge(np.eye(3), [0, 2, 2], classes=4)  # class 1 has no rows, class 2 was not trained, 3 does not exist
    logits = np.asarray(prototype(neighbours(key=np.eye(3)), known, None))
    assert logits.shape == (3, 4) and logits.argmax(axis=1).tolist() == [0, 2, 2]
    assert (logits[:, [1, 3]] == -10.0).all()


def test_in_training_the_mean_of_the_true_class_does_not_contain_the_image(prototype):
    keys = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], np.float32)
    known = knowledge(keys, [0, 0, 1], classes=2)
    found, label = neighbours(key=keys[:1]), jnp.array([0])
    apart = prototype(found, known, LeftOut(label, jnp.array([1.0]), jnp.array([1.0])))
    centre = np.asarray(known.centre)
    head, query = keys[1] - centre, keys[0] - centre
    expected = 10.0 * head @ query / np.linalg.norm(head) / np.linalg.norm(query)
    np.testing.assert_allclose(apart[0, 0], expected, rtol=1e-5)
    np.testing.assert_allclose(apart[0, 1], prototype(found, known, None)[0, 1], rtol=1e-6)
    not_inside = prototype(found, known, LeftOut(label, jnp.array([0.0]), jnp.array([0.0])))
    np.testing.assert_allclose(not_inside, prototype(found, known, None), rtol=1e-5)


def test_what_is_subtracted_from_a_mean_is_the_stored_key_not_that_of_the_augmented_image(prototype):
    keys = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], np.float32)
    known, augmented = knowledge(keys, [0, 0, 1], classes=2), np.array([[0.8, 0.0, 0.6]], np.float32)
    left_out = LeftOut(jnp.array([0]), jnp.array([1.0]), jnp.array([1.0]), jnp.asarray(keys[:1]))
    centre = np.asarray(known.centre)
    head, query = keys[1] - centre, augmented[0] - centre
    expected = 10.0 * head @ query / np.linalg.norm(head) / np.linalg.norm(query)
    np.testing.assert_allclose(prototype(neighbours(key=augmented), known, left_out)[0, 0], expected, rtol=1e-5)


def test_the_only_row_of_a_class_is_kept_in_training_and_gradients_are_finite(prototype):
    known = knowledge(np.eye(3), [0, 1, 1], classes=2)
    graph, params = nnx.split(prototype)

    def loss(params):
        left_out = LeftOut(jnp.array([0]), jnp.array([1.0]), jnp.array([1.0]))
        return nnx.merge(graph, params)(neighbours(key=np.eye(1, 3)), known, left_out).sum()

    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(jax.grad(loss)(params)))


def model(speaking, **settings):
    weights = tuple({"base": 1.0, "vote": 0.5, "prototype": 1.0}[voice] for voice in speaking)
    described = rac.VoiceSettings(speaking=speaking, fusion="sum", weights=weights, **settings)
    return rac.RAC(None, None, num_classes=2, key_width=3, settings=described, rngs=nnx.Rngs(0))


def test_fused_logits_are_a_weighted_sum_of_log_probabilities_and_new_classes_have_an_offset():
    fused = model(("base", "vote", "prototype"))
    known = knowledge(np.eye(3), [0, 1, 2], classes=3, offset=-0.7)
    found = neighbours(key=np.eye(3), rows=[[0, 1], [1, 2], [2, 0]], similarities=[[0.9, 0.5]] * 3)
    logits = {name: np.asarray(values) for name, values in fused(None, found, known).items()}
    assert logits["base"].shape == (3, 2) and logits["vote"].shape == logits["prototype"].shape == (3, 3)
    read = 0.5 * jax.nn.log_softmax(logits["vote"]) + jax.nn.log_softmax(logits["prototype"])
    memory = np.asarray(read) / 1.5 + np.array([[0.0, 0.0, -0.7]])
    share = np.asarray(jax.nn.softmax(memory))
    base = np.concatenate([share[:, :2].sum(axis=1, keepdims=True) * jax.nn.softmax(logits["base"]), share[:, 2:]], 1)
    np.testing.assert_allclose(base.sum(axis=1), 1.0, rtol=1e-5)  # base decides among the classes that it knows
    np.testing.assert_allclose(logits["rac"], (np.log(base) + 1.5 * memory) / 2.5, rtol=1e-4)
    sharper = model(("base", "vote", "prototype"), sharpness=0.8)(None, found, known)["rac"]
    np.testing.assert_allclose(sharper, 0.8 * logits["rac"], rtol=1e-5)


def test_new_classes_have_an_offset_though_every_voice_knows_them():
    """Before, the offset was for classes that some voice does not know: with vote and prototype, for none."""
    fused = model(("vote", "prototype"))
    found = neighbours(key=np.eye(3), rows=[[0, 1], [1, 2], [2, 0]], similarities=[[0.9, 0.5]] * 3)
    without, with_it = (
        fused(None, found, knowledge(np.eye(3), [0, 1, 2], classes=3, offset=offset))["rac"] for offset in (0.0, -0.7)
    )
    np.testing.assert_allclose(with_it - without, np.tile([0.0, 0.0, -0.7], (3, 1)), atol=1e-5)


def test_keys_are_scaled_to_unit_length_for_cosine():
    one = model(("prototype",))
    known = knowledge(np.eye(3), [0, 1, 1], classes=2)
    small, large = (one(None, neighbours(key=factor * np.eye(3)), known)["prototype"] for factor in (0.1, 10.0))
    np.testing.assert_allclose(small, large, rtol=1e-5)


def test_the_papers_fusion_is_shown_beside_a_sum_that_has_base_and_text():
    summed = model(("base", "vote"))
    logits = {"base": jnp.array([[3.0, 4.0]]), "text": jnp.array([[0.0, -2.0]]), "rac": jnp.zeros((1, 2))}
    shown = summed.with_paper(logits)
    assert list(shown) == ["base", "text", "rac", "paper"]
    np.testing.assert_allclose(shown["paper"], 2**0.5 / 2 * np.array([[0.6, -0.2]]), rtol=1e-5)
    assert list(summed.with_paper({"base": logits["base"]})) == ["base"]
