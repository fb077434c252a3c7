"""Views are computed once: keys of E, and the output of the blocks that B shares with E, in one file a view."""

import dataclasses

import jax
import numpy as np
import pytest
from flax import nnx

from rac_jax import config as configs
from rac_jax import data, evaluate, predict, train
from rac_jax.config import ConfigError
from rac_jax.data import pipeline
from rac_jax.data.dataset import ArrayImages
from rac_jax.models.voices import Neighbours
from rac_jax.retrieval import familiarity, views
from rac_jax.run import Run
from tests import tiny


def config(devices=8, count=3):
    """B starts as E, with its first two blocks frozen."""
    c = tiny.config(devices=devices)
    for name, value in c.model.encoder.items():
        c.model.base[name] = value
    c.model.voices, c.model.fusion = "base+vote+prototype", "sum"
    c.model.head, c.model.head_start = "cosine", "means"
    c.memory.lookup, c.memory.k, c.memory.index = "cached", 5, "flat"
    c.optim.frozen, c.train.views = r"base\.(stem|blocks\.[01]\.)", count
    c.train.steps, c.checkpoint.every = 6, 3
    return c


@pytest.fixture(scope="module", params=[1, 8])
def parts(request, tmp_path_factory):
    return Run.from_config(config(request.param), tmp_path_factory.mktemp("views"))


def view(run, split, number):
    return views.of_split(run.config, run.retriever, run.mesh, run.dataset, split, number)


def expected(run, images):
    """What E makes of images on one device: keys of unit length, and the output of its first two blocks."""
    e = run.retriever.encoder
    seen = jax.device_get(jax.jit(e.see)(jax.device_get(e.parameters), np.stack(images)))
    return seen["key"] / np.linalg.norm(seen["key"], axis=1, keepdims=True), seen["activation"]


def test_the_first_view_is_the_plain_image_with_the_memorys_keys(parts):
    found, split = view(parts, "train", 0), parts.dataset.split("train")
    np.testing.assert_array_equal(found.keys, parts.retriever.memory.keys)
    plain = data.eval_transform(parts.config)
    keys, activations = expected(parts, [plain(split.images[i], np.random.default_rng(0)) for i in range(4)])
    np.testing.assert_allclose(found.keys[:4], keys, atol=1e-5)
    assert found.activations.dtype == np.float16 and isinstance(found.activations, np.memmap)
    np.testing.assert_allclose(found.activations[:4], activations, rtol=1e-3, atol=1e-2)


def test_other_views_are_augmented_by_the_seed_and_their_number(parts):
    split, augment = parts.dataset.split("train"), data.train_transform(parts.config)
    found = [view(parts, "train", number) for number in (1, 2)]
    assert np.abs(found[0].keys - found[1].keys).max() > 0.05
    for number in (1, 2):
        draw = pipeline.epoch_seed(parts.config.seed, number)
        drawn = [np.random.Generator(np.random.Philox(key=[draw, place])) for place in range(4)]
        pixels = [augment(split.images[place], random) for place, random in enumerate(drawn)]
        keys, activations = expected(parts, pixels)
        np.testing.assert_allclose(found[number - 1].keys[:4], keys, atol=1e-5)
        np.testing.assert_allclose(found[number - 1].activations[:4], activations, rtol=1e-3, atol=1e-2)


def test_a_view_is_made_once_and_again_if_its_file_is_damaged(parts, monkeypatch):
    first = view(parts, "val", 0)
    (path,) = parts.retriever.cache.glob("view0_val-*.npy")
    monkeypatch.setattr(ArrayImages, "__getitem__", lambda *_: 1 / 0)
    np.testing.assert_array_equal(view(parts, "val", 0).activations, first.activations)
    monkeypatch.undo()
    kept, keys = np.array(first.activations), first.keys
    path.write_bytes(path.read_bytes()[:-1000])
    again = view(parts, "val", 0)
    np.testing.assert_array_equal(again.activations, kept)
    np.testing.assert_array_equal(again.keys, keys)


def test_views_that_do_not_fit_are_refused(parts, monkeypatch, tmp_path):
    monkeypatch.setattr(views.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with pytest.raises(ConfigError, match=r"config\.train\.views is 3: a view needs .* GB free; 0 needs none"):
        view(parts, "test", 0)


def test_a_batch_has_the_rows_of_its_views(parts):
    (batch,) = [{"id": np.array([5, 9, 5, 7] * 2, np.int32), "view": np.array([2, 0, 1, 2] * 2, np.int32)}]
    wanted = [(2, 5), (0, 9), (1, 5), (2, 7)] * 2
    ((placed, found),) = parts.feed([batch], split="train", training=True)
    found, of = jax.device_get(found), [view(parts, "train", number) for number in range(3)]
    assert list(placed) == ["id"]
    np.testing.assert_array_equal(found["key"], np.stack([of[v].keys[i] for v, i in wanted]))
    np.testing.assert_array_equal(found["activation"], np.stack([of[v].activations[i] for v, i in wanted]))
    np.testing.assert_array_equal(found["own_key"], of[0].keys[[5, 9, 5, 7] * 2])
    near = of[2].keys[5] @ parts.retriever.memory.keys.T
    near[5] = -1  # the image's own row
    np.testing.assert_array_equal(found["rows"][0], np.argsort(-near)[:5])
    assert not (found["rows"] == np.array([5, 9, 5, 7] * 2)[:, None]).any()


def test_each_image_shows_all_of_its_views_in_turn(parts):
    split = parts.dataset.split("train")
    batches = pipeline.train_batches(split, None, batch_size=len(split), seed=0, workers=0, views=3)
    seen = np.stack([batch["view"][np.argsort(batch["id"])] for _, batch in zip(range(3), batches, strict=False)])
    np.testing.assert_array_equal(np.sort(seen, axis=0), np.broadcast_to([[0], [1], [2]], seen.shape))
    assert set(seen[0]) == {0, 1, 2}  # an epoch mixes them


def test_b_answers_alike_from_images_and_from_the_cut(parts):
    state = train.initial_state(parts, train.optimizer.from_config(parts.config, 100))
    plain = data.eval_transform(parts.config)
    images = parts.dataset.split("test").images
    pixels = np.stack([plain(images[i], np.random.default_rng(0)) for i in range(8)])
    zeros = np.zeros(8, np.int32)
    batch = train.sharding.put_batch(
        parts.mesh, {"image": pixels, "label": zeros, "id": np.arange(8, dtype=np.int32), "mask": zeros == 0}
    )
    ((_, found),) = parts.feed([{"id": np.arange(8, dtype=np.int32)}], split="test", training=False)
    step = evaluate.make_eval_step(parts)
    whole = {name: value for name, value in found.items() if name != "activation"}
    answers = [
        jax.device_get(step(state.params, state.stats, batch, given, parts.knowledge)[1]["votes"]["base"])
        for given in (whole, found)
    ]
    np.testing.assert_array_equal(answers[0]["label"], answers[1]["label"])
    np.testing.assert_allclose(answers[0]["probability"], answers[1]["probability"], atol=2e-3)


def test_five_crops_are_a_view_of_their_own_and_b_answers_their_mean(parts):
    five = config(parts.config.mesh.data)
    five.eval.views = 5
    run = dataclasses.replace(parts, config=five)
    state = train.initial_state(run, train.optimizer.from_config(five, 100))
    crop, images = data.eval_transform(five), run.dataset.split("test").images
    crops = np.stack([crop(images[i], np.random.default_rng(0)) for i in range(8)])
    ((_, found),) = run.feed([{"id": np.arange(8, dtype=np.int32)}], split="test", training=False)
    keys, activations = expected(run, list(crops))
    np.testing.assert_allclose(found["key"], keys, atol=1e-5)
    np.testing.assert_allclose(found["activation"], activations, rtol=1e-3, atol=1e-2)
    near = np.sort(keys @ run.retriever.memory.keys.T, axis=1)[:, ::-1]
    np.testing.assert_allclose(found["similarities"], near[:, :5], atol=1e-4)
    model = nnx.merge(nnx.graphdef(run.model), jax.device_get(state.params), jax.device_get(state.stats))
    each = np.stack([model._of_base(crops[:, i], None, train=False, keys=None) for i in range(5)])
    for given in (None, Neighbours.of(jax.device_get(found))):
        mean = model._of_base(crops, given, train=False, keys=None)
        np.testing.assert_allclose(mean, each.mean(axis=0), atol=0.05)


@pytest.mark.parametrize("devices", [1, 8])
def test_training_decodes_no_image_and_continues_exactly(devices, tmp_path, monkeypatch):
    train.train(config(devices), tmp_path / "whole", evaluated=False)
    for folder in ("memory", "neighbours"):
        (tmp_path / "whole" / folder).rename(tmp_path / folder)
    monkeypatch.setattr(ArrayImages, "__getitem__", lambda *_: 1 / 0)
    parameters = []
    for steps, workdir in ((3, "parts"), (6, "parts"), (6, "again")):
        c = config(devices)
        c.memory.dir, c.memory.cache = str(tmp_path / "memory"), str(tmp_path / "neighbours")
        c.train.steps = steps
        train.train(c, tmp_path / workdir, evaluated=False)
        parameters.append(jax.device_get(evaluate.restore(c, tmp_path / workdir, steps)[1]))
    jax.tree.map(np.testing.assert_array_equal, parameters[1], parameters[2])
    kernel = [p["base"]["blocks"][4]["project"]["kernel"] for p in parameters]
    assert np.abs(kernel[0] - kernel[1]).max() > 0


@pytest.mark.slow
def test_a_head_on_keys_trains_on_views_and_decodes_no_image_in_its_epochs(tmp_path, monkeypatch):
    c = tiny.config(devices=1)
    configs.instant(c)
    c.model.voices, c.model.base.name, c.model.base.weights, c.model.head = "base+prototype", configs.KEYS, "", "cosine"
    c.memory.k, c.train.views, c.train.steps, c.train.calibrate_sets, c.train.calibrate_new = 5, 2, 3, False, False
    run = Run.from_config(c, tmp_path)
    made = [view(run, "train", number) for number in range(2)]
    assert made[0].activations is made[1].activations is None and np.abs(made[0].keys - made[1].keys).max() > 0.05
    monkeypatch.setattr(familiarity, "FEWEST", 10**9)  # it encodes held-out images after training
    monkeypatch.setattr(ArrayImages, "__getitem__", lambda *_: 1 / 0)
    first = jax.device_get(train.initial_state(run, train.optimizer.from_config(c, 466)).params)
    train.train(c, tmp_path, evaluated=False)
    trained = jax.device_get(evaluate.restore(c, tmp_path, None)[1])
    for name in ("base_head", "prototype"):
        moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), first[name], trained[name])
        assert max(jax.tree.leaves(moved)) > 0, name


@pytest.mark.parametrize("crops", [1, 5])
def test_a_trained_run_predicts_what_it_evaluates(crops, tmp_path):
    c = config(count=1)
    c.train.steps, c.eval.views = 2, crops
    train.train(c, tmp_path, evaluated=False)
    run, params, stats, _ = evaluate.restore(c, tmp_path, None, split="test")
    _, evaluated = evaluate.answers(run, params, stats, "test")
    images = [run.dataset.split("test").images[i] for i in range(8)]
    for place, answer in enumerate(predict.predict(run, params, stats, images)):
        for voice in ("rac", "base", "vote", "prototype"):
            votes = evaluated.votes[voice]
            assert answer["voices"][voice]["label"] == run.classes.names[votes.label[place]]
            assert abs(answer["voices"][voice]["probability"] - votes.probability[place]) < 5e-3


def test_keys_that_are_kept_by_image_are_the_same(parts, tmp_path):
    plain = view(parts, "test", 0).keys
    config = parts.config.copy_and_resolve_references()
    config.memory.kept_keys = str(tmp_path / "kept")
    kept = views._known(config, parts.retriever, parts.mesh, parts.dataset, "test")
    np.testing.assert_allclose(kept, plain, atol=1e-5)
    assert list((tmp_path / "kept").glob("by_image-*/keys-*.npz"))
