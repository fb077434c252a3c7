"""Answers with padded knowledge: the same as without, and an edit within the padding compiles nothing."""

import dataclasses
import shutil

import jax
import numpy as np
import pytest

import rac_jax
from rac_jax.answering import Answering
from rac_jax.calibration.coverage import LabelSets
from rac_jax.data.sets import digits
from rac_jax.retrieval.knowledge import Room

SETTINGS = {"data__image_size": 32, "model__encoder": {"depth": 5}, "mesh.data": 1, "eval.batch_size": 16}
compiled = []


@pytest.fixture(scope="module")
def model():
    part = digits.load(0).split("train")
    chosen = np.concatenate([np.flatnonzero(part.labels == label)[:8] for label in range(4)])
    names = [f"the {label}" for label in part.labels[chosen]]
    return rac_jax.fit(part.images.pixels[chosen], names, train__epochs=2.0, **SETTINGS)


@pytest.fixture
def pixels(model):
    return list(np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3), np.uint8))


def compilations():
    """How many programs were compiled or read from the cache in this process so far."""
    if not compiled:
        compiled.append(0)
        jax.monitoring.register_event_duration_secs_listener(count)
    return compiled[0]


def count(name, seconds, **rest):
    compiled[0] += name.endswith("backend_compile_duration")


def test_padding_changes_no_answer(model, pixels):
    run, params, stats = model._run, model._answering.params, model._answering.stats
    exact = Room(len(run.classes), len(run.retriever.memory))
    expected = Answering.of(run, params, stats, exact).answers(pixels)
    padded = Answering.of(run, params, stats)
    assert (padded.room.classes, padded.room.rows) == (32, 2048) and exact == Room(4, 24)
    for answer, other in zip(padded.answers(pixels), expected, strict=True):
        assert answer["neighbours"] == other["neighbours"] and answer["familiarity"] == other["familiarity"]
        for voice, vote in answer["voices"].items():
            assert vote["label"] == other["voices"][voice]["label"]
            assert vote["probability"] == pytest.approx(other["voices"][voice]["probability"], rel=1e-5)


def test_an_edit_within_the_room_compiles_nothing(model, pixels):
    model.predict(np.stack(pixels))
    before = compilations()
    images = np.random.default_rng(1).integers(0, 256, (3, 32, 32, 3), np.uint8)
    room = model._answering.room
    model.add(images, ["new"] * 3, source="more")
    edited = compilations()  # adding encodes with a program of its own
    answers = model.predict(np.stack(pixels))
    assert compilations() == edited and model._answering.room == room
    assert model.classes[-1] == "new" and len(answers) == 5
    model.remove("more")
    model.predict(np.stack(pixels))
    assert compilations() == edited >= before


def test_room_grows_by_an_eighth_when_it_is_used_up(model):
    assert Room.for_more_than(8142, 437_513) == Room(9168, 492_544)
    room = Room(16, 1024)
    assert room.holds(16, 1024) and not room.holds(17, 1) and not room.holds(1, 1025)
    small = dataclasses.replace(model._answering, room=Room(2, 2))
    assert small.after(model._run).room == Room.for_more_than(4, 24)


def test_batches_have_one_of_a_few_sizes(model, pixels):
    answering = model._answering
    assert answering.sizes(16) == [1, 2, 4, 8, 16] and answering.sizes(5) == [1, 2, 4]
    assert [answering.place(pixels[:1] * number).shape[0] for number in (1, 3, 5, 9, 16)] == [1, 4, 8, 16, 16]
    np.testing.assert_allclose(answering.keys(pixels)[2], answering.keys(pixels[2:3])[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("evaluated", "sizes"), [(16, [1, 2, 4, 8, 16, 32]), (12, [1, 2, 4, 8, 12, 16, 32])])
def test_more_images_than_a_batch_of_evaluation_have_a_compiled_size_too(model, evaluated, sizes):
    config = model.config
    config.eval.batch_size = evaluated
    answering = dataclasses.replace(model._answering, run=dataclasses.replace(model._run, config=config))
    assert answering.sizes(40) == sizes
    for images in range(1, 33):
        assert answering._size(images) == min(size for size in sizes if size >= images)


def test_sets_of_voices_that_do_not_know_a_class_of_the_memory(trained, tmp_path):
    model = rac_jax.load(shutil.copytree(trained, tmp_path / "run"), mesh__data=1)
    pixels = list(np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), np.uint8))
    sets = LabelSets(0.9, 0.0, threshold=-0.1)  # all labels of at least a tenth
    model.teach(np.zeros((32, 32, 3), np.uint8), "new")
    assert model.classes[-1] == "new" and len(model.classes) == 11
    answers = model._answering.answers(pixels, sets)
    assert [answer["labels"][0] for answer in answers] == [answer["label"] for answer in answers]
    assert "new" not in {label for answer in answers for label in answer["labels"]}
    everything = dataclasses.replace(sets, threshold=float("inf"))
    assert all(set(answer["labels"]) == set(model.classes) for answer in model._answering.answers(pixels, everything))
