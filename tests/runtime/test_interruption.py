"""SIGTERM and Ctrl-C in mid-run, and starting again."""

import os
import signal

import pytest

from rac_jax import train
from rac_jax.checkpoints import Checkpoints
from rac_jax.retrieval import feed
from rac_jax.runtime import interruption
from tests import tiny
from tests.test_train import assert_same, events, saved_state


def config():
    c = tiny.config("base", devices=1)
    c.train.steps, c.checkpoint.every, c.train.log_every = 9, 4, 3
    return c


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("undisturbed")
    train.train(config(), workdir)
    return saved_state(config(), workdir, 9)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_step_is_finished_and_saved_and_the_run_goes_on_from_there(whole, tmp_path, monkeypatch, number):
    original = feed.feed

    def disturbed(*args, **kwargs):
        for n, fed in enumerate(original(*args, **kwargs)):
            if n == 5:
                os.kill(os.getpid(), number)
            yield fed

    handlers = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patch, pytest.raises(interruption.Interrupted) as stopped:
        patch.setattr(feed, "feed", disturbed)
        train.train(config(), tmp_path)
    assert stopped.value.code == interruption.REQUEUE == 75
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == handlers
    with Checkpoints.read(tmp_path) as checkpoints:
        assert checkpoints.latest() == 6
    assert [point.step for point in events(tmp_path).Scalars("train/loss")] == [3, 6]
    assert not (tmp_path / "eval").exists()
    train.train(config(), tmp_path)
    assert_same(saved_state(config(), tmp_path, 9), whole)


@pytest.fixture
def heeded():
    """SIGINT as a terminal's program has it; one that a shell started in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_second_signal_acts_at_once(heeded):
    with pytest.raises(KeyboardInterrupt), interruption.Interruption() as noted:
        os.kill(os.getpid(), signal.SIGINT)
        assert noted.reached(1)
        os.kill(os.getpid(), signal.SIGINT)
