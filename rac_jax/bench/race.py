"""Contenders take turns in one process, so that other load on the machine affects all of them equally."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from tqdm import tqdm

Timed = dict[str, list[float]]


def race(contenders: Mapping[str, Callable[[], Any]], rounds: int, title: str) -> Timed:
    """Seconds of each turn by contender; the first turn of each is not counted."""
    times: Timed = {name: [] for name in contenders}
    with tqdm(total=(rounds + 1) * len(contenders), desc=title, leave=False) as bar:
        for number in range(rounds + 1):
            for name, run in contenders.items():
                started = time.perf_counter()
                run()
                if number:
                    times[name].append(time.perf_counter() - started)
                bar.update()
    return times


def median(seconds: list[float]) -> float:
    """The median of a contender's turns."""
    return float(np.median(seconds))


def ratio(times: Timed, name: str, base: str) -> float:
    """The median over turns of the ratio of two contenders' times in the same turn."""
    return float(np.median(np.divide(times[name], times[base])))
