"""Can this machine run a config? `python -m rac_jax.main --config=… --mode=check` answers in about two minutes.

One line per question, "ok" or "problem" with the remedy. Nothing is trained and nothing is left in the workdir.
"""

import dataclasses
import functools
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from rac_jax import config as configs
from rac_jax import data, rules, sharding, weights
from rac_jax.compile import devices, estimate, programs
from rac_jax.compile.devices import GB
from rac_jax.compile.estimate import Compiled
from rac_jax.compile.programs import Program
from rac_jax.compile.targets import CPU, Target
from rac_jax.data import pipeline
from rac_jax.data.dataset import Dataset
from rac_jax.memory import index, manifest
from rac_jax.retrieval import feed
from rac_jax.runtime import files, monitor, processes
from rac_jax.start import tuning

STEPS = 5  # timed, after one that is not
INPUT_SECONDS = 10.0
INDENT = 9  # columns before an answer
HNSW_LINKS = 4 * 2  # bytes a row and link of config.memory.hnsw_m


class Problem(Exception):
    """Something that would keep the config from running, or from running well; the message has the remedy."""


@dataclasses.dataclass
class Found:
    """What earlier questions found out, for later ones."""

    config: ConfigDict
    workdir: Path
    dataset: Dataset | None = None
    programs: dict[str, Program] = dataclasses.field(default_factory=dict)
    compiled: dict[str, Compiled] = dataclasses.field(default_factory=dict)
    step: float = 0.0  # seconds

    @functools.cached_property
    def trained(self) -> ConfigDict:
        """The config of the training that takes most: with config.tune, that of E."""
        return tuning.stage(self.config) if self.config.tune.share else self.config


def check(config: ConfigDict, workdir: Path) -> bool:
    """Ask every question and print the answers; whether all were ok."""
    found, good = Found(config, workdir), True
    for name, question in QUESTIONS.items():
        try:
            answer, ok = question(found), True
        except Exception as error:  # whatever it is, the other questions are still worth asking
            answer, ok = str(error) or repr(error), False
        good &= ok
        if answer and (processes.first() or not ok):
            text = answer.replace("\n", "\n" + " " * INDENT)
            print(f"{'ok' if ok else 'problem':<{INDENT}}{name}: {text}", flush=True)
    return good


def _devices(found: Found) -> str:
    driver = _driver()
    if driver and jax.default_backend() == "cpu":
        raise Problem(
            f"driver {driver} is here, but JAX computes on the CPU; "
            f'`pip install "jax[cuda12]=={jax.__version__}"`, and unset JAX_PLATFORMS or set it to cuda,cpu'
        )
    retrieves = "encoder" in configs.roles(found.config)
    if retrieves and jax.default_backend() != "cpu" and feed.lookup_of(found.config) == "callback":
        try:
            jax.devices("cpu")
        except RuntimeError as error:
            raise Problem("config.memory.lookup=callback needs JAX's CPU backend: JAX_PLATFORMS=cuda,cpu") from error
    return monitor.devices() + (f", driver {driver}" if driver else "") + f", jax {jax.__version__}"


def _driver() -> str:
    """The version of NVIDIA's driver, or ""."""
    if not shutil.which("nvidia-smi"):
        return ""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.split("\n")[0].strip() if done.returncode == 0 else ""


def _config(found: Found) -> str:
    rules.validate(found.config, devices=jax.device_count())
    if found.config.tune.share:
        tuning.checked_stage(found.config)
    rows = sharding.padded_size(found.trained.train.batch_size, jax.device_count(), found.trained.train.accumulate)
    return f"{found.config.name}, batch {found.trained.train.batch_size}, {rows // jax.device_count()} rows a device"


def _data(found: Found) -> str:
    found.dataset = data.load(found.config)
    images = {name: len(split) for name, split in found.dataset.splits.items()}
    return f"{found.dataset.num_classes} classes; " + ", ".join(f"{name} {n:,}" for name, n in images.items())


def _weights(found: Found) -> str:
    model = found.config.model
    wanted = dict.fromkeys(model[role].weights for role in configs.roles(found.config) if model[role].weights)
    return ", ".join(str(weights.resolve(name, found.config.weights_dir).name) for name in wanted) or "from scratch"


def _workdir(found: Found) -> str:
    files.probe(found.workdir)
    processes.require_shared(found.workdir)
    shared = f", seen by all {jax.process_count()} processes" if jax.process_count() > 1 else ""
    return f"{found.workdir} can be written{shared}"


def _threads(found: Found) -> str:
    if "encoder" not in configs.roles(found.config):
        return ""
    cores, local = os.cpu_count() or 1, jax.local_device_count()
    if jax.default_backend() != "cpu" and cores < local:
        raise Problem(f"{cores} cores for {local} devices; the lookup needs one core a device or more")
    return f"FAISS {faiss.__version__}, {max(1, cores // local)} of {cores} threads for each of {local} devices"


def _compiled(found: Found) -> str:
    config = found.trained
    if found.dataset:
        sizes = found.dataset.num_classes, len(found.dataset.split("train"))
    elif config.data.name in programs.SIZES:
        sizes = programs.sizes(config)
    else:
        raise Problem("it depends on the number of classes and images; it can be said when the data can be read")
    found.programs = programs.of_run(config, jax.devices(), *sizes)
    here = Target("here", CPU, jax.device_count())
    for name in ("train", estimate.searched_by(config)):
        if name in found.programs:
            found.compiled[name] = estimate.compile_program(found.programs[name], here)
    need = estimate.memory(config, found.compiled, CPU).need
    limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", 0)
    if limit and need > limit:
        raise Problem(
            f"{need / GB:.1f} GB are needed on each device and {limit / GB:.1f} are there; raise "
            "config.train.accumulate or config.mesh.fsdp, set config.model.base.remat=True, or lower "
            "config.train.batch_size"
        )
    return f"{need / GB:.2f} GB a device" + (
        f" of {limit / GB:.1f}" if limit else " (JAX does not say how many it has)"
    )


def _disk(found: Found) -> str:
    if "train" not in found.programs:
        return ""
    state = found.programs["train"].arguments[0]
    each = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    need = each * (found.config.checkpoint.keep + 1)
    folder = Path(found.config.memory.dir) if found.config.memory.dir else found.workdir / "memory"
    memory = 0
    if "device" in found.programs and not manifest.exists(folder):
        rows, width = found.programs["device"].arguments[0]["keys"].shape
        bytes_a_number = 2 if index.precision(found.config) == "float16" else 4
        memory = 2 * rows * (width * bytes_a_number + found.config.memory.hnsw_m * HNSW_LINKS)  # the keys, the index
    free = shutil.disk_usage(found.workdir).free
    text = f"{need / GB:.1f} GB of checkpoints, {memory / GB:.1f} of memory; {free / GB:.1f} GB free"
    if free < need + memory:
        raise Problem(f"{text}; make room, use another --workdir, or lower config.checkpoint.keep")
    return text


def _steps(found: Found) -> str:
    if "train" not in found.compiled:
        return ""
    state, *rest = (_zeros(argument) for argument in found.programs["train"].arguments)
    step, seconds = found.compiled["train"].executable, []
    of_a_step = estimate.of_a_step(found.trained, found.compiled)
    before = next((program for program in of_a_step if program.name != "train"), None)  # E, and perhaps the search
    asked = _zeros(found.programs[before.name].arguments) if before else ()
    for _ in range(STEPS + 1):
        started = time.perf_counter()
        encoded = before.executable(*asked) if before else None
        state, metrics = step(state, *rest)
        jax.block_until_ready((state, metrics, encoded))
        seconds.append(time.perf_counter() - started)
    found.step = sorted(seconds[1:])[STEPS // 2]
    text = f"{1e3 * found.step:.1f} ms a step, {found.trained.train.batch_size / found.step:,.0f} images/s"
    if device := devices.like(jax.devices()[0].device_kind):
        best, worst = estimate.step_seconds(of_a_step, device)
        text += f"; estimated {1e3 * best:.1f} to {1e3 * worst:.1f} ms"
        if found.step > 2 * worst:
            raise Problem(f"{text}; look at a trace (--profile), and at other users of the devices")
    return text


def _zeros(shapes: Any) -> Any:
    """Arrays of these shapes at their places. Times do not depend on the numbers in them."""
    places = sharding.shardings(shapes)
    return jax.jit(lambda: jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes), out_shardings=places)()


def _input(found: Found) -> str:
    if found.dataset is None:
        return ""
    config, split = found.trained, found.dataset.split("train")
    if not feed.needs_images(config):
        return "training decodes no image; E sees each one before the first step"
    size = sharding.padded_size(config.train.batch_size, jax.device_count(), config.train.accumulate)
    batches = pipeline.train_batches(
        split, data.train_transform(config), batch_size=size, seed=config.seed, workers=config.data.workers
    )
    next(batches)  # starts the workers
    started, images = time.perf_counter(), 0
    while images == 0 or time.perf_counter() - started < INPUT_SECONDS:
        next(batches)
        images += size
    rate = images / (time.perf_counter() - started)
    wanted = config.train.batch_size / found.step if found.step else 0.0
    text = f"{rate:,.0f} images/s with {config.data.workers} workers; a step eats {wanted:,.0f}"
    if rate < wanted:
        raise Problem(
            f"{text}; raise config.data.workers (there are {os.cpu_count()} cores), or pack the images with "
            "`python -m rac_jax.data.prepare`"
        )
    return text


QUESTIONS: dict[str, Callable[[Found], str]] = {
    "devices": _devices,
    "config": _config,
    "data": _data,
    "weights": _weights,
    "workdir": _workdir,
    "lookup": _threads,
    "memory": _compiled,
    "disk": _disk,
    "steps": _steps,
    "input": _input,
}
