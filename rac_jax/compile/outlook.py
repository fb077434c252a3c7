"""After a run without training of B: how long it would take here to train B as well, measured on a few steps."""

import contextlib
import dataclasses
import os
import runpy
import shlex
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from rac_jax import config as configs
from rac_jax import data, optimizer, run
from rac_jax.compile import programs
from rac_jax.config import ConfigError
from rac_jax.data import record
from rac_jax.data.decode import BadImage
from rac_jax.memory import build
from rac_jax.retrieval import feed
from rac_jax.retrieval.views import AUGMENTATION
from rac_jax.start import tuning

STEPS = 2  # that are timed, after one that is not
IMAGES = 8  # that are decoded


@dataclasses.dataclass(frozen=True)
class Times:
    """Seconds on this machine."""

    compiling: float
    step: float
    encoding: float  # of an image by E, all devices together
    decoding: float  # and augmenting an image, all cores together


def say(config: ConfigDict, workdir: Path) -> None:
    """Print how long config.train.then would take, if there is one and this is the only process."""
    trained_on = record.read(workdir)
    if not config.train.then or trained_on is None or jax.process_count() > 1:
        return
    then = next_config(config)
    images, classes = sum(trained_on.train_images), len(trained_on.classes)
    evaluated = trained_on.splits.get(config.eval.split, {}).get("images", 0)
    times = measured(then, classes, images)
    duration = in_words(estimate(then, times, images, evaluated))
    print(
        f"{config.train.then} would train B as well, in about {duration} here (measured on {STEPS} steps)"
        f"{command(config, workdir)}"
    )


def next_config(config: ConfigDict) -> ConfigDict:
    """The config that config.train.then names, on this run's data, which it may augment in another way.

    Without its file, it is this config finetuned.
    """
    then = _named(config.train.then)
    if then is None:
        then = config.copy_and_resolve_references()
        configs.finetuned(then)
        return then
    then.data.update({name: value for name, value in config.data.items() if name not in AUGMENTATION})
    then.mesh.update(config.mesh)
    then.weights_dir, then.memory.k = config.weights_dir, config.memory.k
    return then


def command(config: ConfigDict, workdir: Path) -> str:
    """How to start it with this run's memory, which saves encoding the images again; "" without its file."""
    given, then = _named(config.train.then), next_config(config)
    if given is None:
        return ""
    changed = configs.difference(given.to_dict(), then.to_dict())
    flags = {name: new for name, (_, new) in changed.items()}
    if build.values_of_recipe(then) == build.values_of_recipe(config):
        flags["memory.dir"] = run.memory_folder(config, workdir)
    words = [f"--config={config.train.then}", *(f"--config.{name}={value}" for name, value in flags.items())]
    return ":\n  " + shlex.join(["python", "-m", "rac_jax.main", *words])


def _named(name: str) -> ConfigDict | None:
    """The config FILE:VARIANT, if there is such a file."""
    file, _, variant = name.partition(":")
    if not Path(file).is_file():
        return None
    get_config = runpy.run_path(file).get("get_config")
    if get_config is None:
        raise ConfigError(f"config.train.then is {name!r}, but {file} has no function get_config")
    return get_config(variant)


def estimate(config: ConfigDict, times: Times, images: int, evaluated: int) -> float:
    """Seconds of a run with its evaluation, for these times of its parts.

    Views are decoded and encoded once. Without them each step decodes its images, and E sees those too unless the
    neighbours are cached. With config.tune, B is trained in a run of its own, and E then sees all images once more.
    """
    if config.tune.share:
        each = times.decoding + times.encoding
        return estimate(tuning.stage(config), times, images, 0) + (images + evaluated) * each
    steps = optimizer.total_steps(config, images)
    drawn, views = steps * config.train.batch_size, config.train.views
    decoded = images * views or drawn
    encoded = images * max(1, views) if feed.lookup_of(config) == "cached" else drawn
    apart = (decoded + evaluated) * times.decoding + (encoded + evaluated) * times.encoding
    return times.compiling + apart + steps * times.step


def measured(config: ConfigDict, classes: int, images: int) -> Times:
    """The times of a run's parts. Its step is compiled as the run will need it, and kept with the compiled programs."""
    config = tuning.stage(config) if config.tune.share else config
    made = programs.of_run(config, jax.devices(), classes, images)
    step = made["train"]
    state, *rest = jax.tree.map(_zeros, step.arguments)
    begun = time.perf_counter()
    state, metrics = jax.block_until_ready(step.function(state, *rest))
    compiling = time.perf_counter() - begun
    begun = time.perf_counter()
    for _ in range(STEPS):
        state, metrics = step.function(state, *rest)
    jax.block_until_ready((state, metrics))
    each = (time.perf_counter() - begun) / STEPS
    encoding = _encoding(made["keys"]) if "keys" in made else 0.0
    return Times(max(compiling - each, 0.0), each, encoding, _decoding(config))


def _encoding(encoder: programs.Program) -> float:
    parameters, pixels = jax.tree.map(_zeros, encoder.arguments)
    jax.block_until_ready(encoder.function(parameters, pixels))
    begun = time.perf_counter()
    jax.block_until_ready(encoder.function(parameters, pixels))
    return (time.perf_counter() - begun) / len(pixels)


def _decoding(config: ConfigDict) -> float:
    config = config.copy_and_resolve_references()
    config.data.on_bad_image = "error"  # the run itself has looked for bad images
    images, augment = data.load(config).split("train").images, data.train_transform(config)
    begun, some = time.perf_counter(), min(IMAGES, len(images))
    for place in range(some):
        with contextlib.suppress(BadImage):
            augment(images[place], np.random.default_rng(place))
    return (time.perf_counter() - begun) / some / (config.data.workers or os.cpu_count() or 1)


def _zeros(leaf: Any) -> jax.Array:
    return jnp.zeros(leaf.shape, leaf.dtype, device=leaf.sharding)


def in_words(seconds: float) -> str:
    """As "40 seconds", "6 minutes" or "2.5 hours"."""
    if seconds < 90:
        return f"{max(10, round(seconds, -1)):.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
