"""Losses are looked at as they come out, and a bad one names its batch."""

import json
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rac_jax import evaluate, train
from rac_jax.checkpoints import Checkpoints
from rac_jax.retrieval import feed
from rac_jax.runtime.monitor import Breakdown, InFlight, NotFinite
from tests import tiny
from tests.test_train import events


def metrics(loss, norm=1.0):
    return {"loss": jnp.float32(loss), "gradient_norm": jnp.float32(norm)}


def test_means_since_the_last_time(tmp_path):
    in_flight = InFlight(tmp_path, None, Breakdown())
    for step, loss in enumerate([1.0, 2.0, 6.0]):
        in_flight.add(step, jnp.arange(2), metrics(loss))
    assert in_flight.take_means() == {"loss": 3.0, "gradient_norm": 1.0}
    in_flight.add(3, jnp.arange(2), metrics(5.0))
    assert in_flight.take_means()["loss"] == 5.0


def test_means_of_the_steps_that_have_arrived(tmp_path):
    in_flight = InFlight(tmp_path, None, Breakdown())
    for step, loss in enumerate([1.0, 2.0, 6.0, 8.0]):
        in_flight.add(step, jnp.arange(2), metrics(loss))
    assert in_flight.take_means(wait=False)["loss"] == 1.5  # the last two are under way
    assert in_flight.take_means(wait=False)["loss"] == 7.0  # none has arrived: they are waited for


@pytest.mark.parametrize("on_cpu, waited_for", [(True, [2, 3, 5, 6, 8, 9, 10]), (False, [2, 10])])
def test_accelerators_are_waited_for_in_the_first_record_only(tmp_path, monkeypatch, on_cpu, waited_for):
    config = tiny.config("base", devices=1)
    config.train.steps, config.train.log_every, config.checkpoint.every = 10, 3, 100
    original, found = InFlight.land_all, []

    def land_all(self):
        found.extend(self._steps[-1][:1] if self._steps else ())
        original(self)

    monkeypatch.setattr(train.Progress, "on_cpu", on_cpu)
    monkeypatch.setattr(InFlight, "land_all", land_all)
    train.train(config, tmp_path, evaluated=False)
    assert found == waited_for
    assert [point.step for point in events(tmp_path).Scalars("train/loss")] == [3, 6, 9, 10]


@pytest.mark.parametrize("bad", [metrics(np.nan), metrics(np.inf), metrics(1.0, np.nan)])
def test_a_bad_step_is_noticed_two_steps_later_without_being_waited_for(tmp_path, bad, monkeypatch):
    class Images:
        def references(self):
            return [f"{i}.png" for i in range(8)]

    class Split:
        images = Images()

    in_flight = InFlight(tmp_path, Images().references, Breakdown())
    in_flight.add(1, jnp.array([7, 5]), bad)
    in_flight.add(2, jnp.array([1, 2]), metrics(1.0))
    with pytest.raises(NotFinite, match="step 1 has loss"):
        in_flight.add(3, jnp.array([3, 4]), metrics(1.0))
    found = json.loads((tmp_path / "not_finite_0.json").read_text())
    assert (found["step"], found["ids"], found["images"]) == (1, [7, 5], ["7.png", "5.png"])


def test_a_run_whose_loss_is_not_finite_stops_and_saves_nothing_after_it(tmp_path, monkeypatch):
    config = tiny.config("base")
    config.train.steps, config.checkpoint.every, config.train.log_every = 9, 1, 9
    original, seen = feed.feed, []

    def poisoned(*args, **kwargs):
        for batch, found in original(*args, **kwargs):
            seen.append(np.asarray(batch["id"]).tolist())
            if len(seen) == 4:
                batch = batch | {"label": jax.jit(lambda label: label + 1000)(batch["label"])}  # no such class
            yield batch, found

    monkeypatch.setattr(feed, "feed", poisoned)
    with pytest.raises(NotFinite, match=r"step 4 has .*Lower config"):
        train.train(config, tmp_path)
    assert json.loads((tmp_path / "not_finite_0.json").read_text())["ids"] == seen[3]
    with Checkpoints.read(tmp_path) as checkpoints:
        assert checkpoints.latest() == 3


def test_an_evaluation_in_the_loop_is_not_charged_to_the_steps(tmp_path, monkeypatch):
    config = tiny.config("base", devices=1)
    config.train.steps, config.train.log_every, config.eval.every = 5, 1, 2
    original, seconds = evaluate.count, 4.0

    def slow(*arguments):
        time.sleep(seconds)
        return original(*arguments)

    monkeypatch.setattr(evaluate, "count", slow)
    train.train(config, tmp_path, evaluated=False)
    board = events(tmp_path)
    assert [point.step for point in board.Scalars("val/base/all")] == [2, 4]
    step_ms = {point.step: point.value for point in board.Scalars("train/step_ms")}
    assert max(step_ms[3], step_ms[5]) < 1e3 * seconds / 2
