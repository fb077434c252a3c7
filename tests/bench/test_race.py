"""Contenders in turns."""

import time

import pytest

from rac_jax.bench import race


def test_contenders_take_turns_and_their_ratio_is_that_of_their_times():
    order = []

    def spend(name, seconds):
        order.append(name)
        time.sleep(seconds)

    times = race.race({"a": lambda: spend("a", 0.004), "b": lambda: spend("b", 0.012)}, 5, "test")
    assert order == ["a", "b"] * 6 and len(times["a"]) == 5  # the first turn is not counted
    assert race.ratio(times, "b", "a") == pytest.approx(3, rel=0.4)
