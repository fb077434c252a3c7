"""A long run on 8 simulated devices holds no more memory at its end than after its first 200 steps.

RAC_JAX_SOAK=2000 python -m pytest tests/test_soak.py -s      # steps; left out otherwise, for it takes long

What counts is what is held: every 50 steps the devices are waited for and free pages are handed back to the system
before the process is measured. A run itself does neither (rac_jax/host_memory.py), and its resident size, printed
beside it, does grow in jumps.
"""

import ctypes
import gc
import os
import resource
from pathlib import Path

import jax
import numpy as np
import pytest

from rac_jax import feed, train
from tests import tiny

STEPS = int(os.environ.get("RAC_JAX_SOAK", "0"))
SETTLED, EVERY = 200, 50


def resident_megabytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6


def held_megabytes():
    jax.block_until_ready(jax.live_arrays())
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return resident_megabytes()


@pytest.mark.skipif(not STEPS, reason="set RAC_JAX_SOAK=2000 to run it")
def test_host_memory_does_not_grow(tmp_path, monkeypatch):
    config = tiny.config()
    config.train.epochs, config.train.steps, config.train.log_every = 1000.0, STEPS, 20
    config.checkpoint.every = 1000  # the default; each save leaves some 1.3 MB behind, in Orbax (13 saves: 20 MB)
    original, seen = feed.feed, []

    def watched(*args, **kwargs):
        for n, fed in enumerate(original(*args, **kwargs)):
            if n % EVERY == 0:
                heap = resident_megabytes()
                seen.append((n, held_megabytes()))
                print(f"step {n}: {seen[-1][1]:.0f} MB held, heap and all {heap:.0f} MB", flush=True)
            yield fed

    monkeypatch.setattr(feed, "feed", watched)
    monkeypatch.setattr(train.evaluate, "evaluate", lambda *_: None)
    train.train(config, tmp_path)
    steps, megabytes = np.array([point for point in seen if point[0] >= SETTLED]).T
    growth = np.polyfit(steps, megabytes, 1)[0] * (STEPS - SETTLED)
    print(f"growth over {STEPS - SETTLED} steps, by a line through them: {growth:.1f} MB")
    assert growth < 20
    assert np.median(megabytes[-5:]) - np.median(megabytes[:5]) < 20
