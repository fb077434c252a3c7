"""Training keeps keys of images of the split val, and familiarity is the rank among them."""

import numpy as np

from rac_jax import data, evaluate, predict
from rac_jax.answering import Answering
from rac_jax.retrieval import familiarity
from tests import tiny


def test_familiarity_is_the_rank_among_images_of_val(trained):
    run, params, stats, _ = evaluate.restore(predict.here(trained), trained, None)
    val = data.load(tiny.config()).split("val")
    kept = run.retriever.held_out
    assert len(kept) == min(len(val), familiarity.MOST)
    answering, transform = Answering.of(run, params, stats), data.eval_transform(run.config)
    places = np.unique(np.linspace(0, len(val) - 1, familiarity.MOST).astype(int))
    pixels = [transform(val.images[int(place)], np.random.default_rng(0)) for place in places]
    np.testing.assert_allclose(answering.keys(pixels), kept, rtol=1e-4, atol=1e-5)
    shares = np.sort([answer["familiarity"] for answer in answering.answers(pixels)])
    np.testing.assert_allclose(shares, (np.arange(len(kept)) + 1) / len(kept), atol=0.02)  # each is one of them
