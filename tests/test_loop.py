"""What the loop does beside training: no hidden transfers, nothing compiled twice, and an account of itself."""

import contextlib
import dataclasses
import logging
import re
import threading
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.array import ArrayImpl
from jax.sharding import NamedSharding, PartitionSpec

from rac_jax import config as configs
from rac_jax import train
from rac_jax.checkpoints import Checkpoints
from rac_jax.runtime import compilation, monitor
from tests import tiny
from tests.test_train import events


def config():
    c = tiny.config(devices=2)
    c.train.steps, c.train.log_every, c.checkpoint.every, c.eval.show = 12, 4, 4, 0
    return c


@contextlib.contextmanager
def compiler_log():
    """The names of the programs that are compiled inside, and of those that were found in the cache."""
    compiled, hits, records = [], [], []

    class Keep(logging.Handler):
        def emit(self, record):
            records.append(record.getMessage())

    handler, loggers = Keep(), [logging.getLogger(name) for name in ("jax._src.dispatch", "jax._src.compiler")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
    try:
        yield compiled, hits
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(level)
        for message in records:
            compiled += re.findall(r"Finished XLA compilation of (?:jit\()?(\w+)", message)
            hits += re.findall(r"Persistent compilation cache hit for '(?:jit_)?(\w+)'", message)


@dataclasses.dataclass
class Watched:
    """A run whose loop may not move anything to the devices unasked."""

    workdir: Path
    compiled: list[str]  # by the loop
    late: list[str]  # of these, after the first save
    reads: list[int]  # of arrays by the loop's thread, before each save


def watch(c, workdir, **options):
    original, save, read = train.loop, Checkpoints.save, ArrayImpl._value.fget
    names, at_save, reads, here = [], [], [0], threading.current_thread()
    with pytest.MonkeyPatch.context() as patch:

        def guarded(*arguments):
            reads[0] = 0
            with jax.transfer_guard("disallow"), compiler_log() as (compiled, _):
                result = original(*arguments)
            names.extend(compiled)
            return result

        def counted(array):
            reads[0] += threading.current_thread() is here
            return read(array)

        def saved(*arguments):
            at_save.append(reads[0])
            save(*arguments)
            logging.getLogger("jax._src.dispatch").debug("Finished XLA compilation of SAVED")
            reads[0] = 0

        patch.setattr(train, "loop", guarded)
        patch.setattr(Checkpoints, "save", saved)
        patch.setattr(ArrayImpl, "_value", property(counted))
        train.train(c, workdir, **options)
    first = names.index("SAVED")
    late = [name for name in names[first:] if name != "SAVED"]
    return Watched(workdir, [name for name in names if name != "SAVED"], late, at_save)


@pytest.fixture(scope="module")
def looped(tmp_path_factory):
    return watch(config(), tmp_path_factory.mktemp("looped"), profile=True)


@pytest.fixture(scope="module", params=["callback", "pipelined", "cached"])
def any_lookup(request, looped, tmp_path_factory):
    if request.param == "callback":
        return looped
    c = config()
    c.memory.lookup, c.memory.dir = request.param, str(looped.workdir / "memory")
    return watch(c, tmp_path_factory.mktemp(request.param))


def test_the_guard_would_notice():
    with pytest.raises(Exception, match="Disallowed host-to-device transfer"), jax.transfer_guard("disallow"):
        jnp.add(jnp.float32(1), 1)


def test_each_program_is_compiled_once(any_lookup):
    names = any_lookup.compiled
    assert names.count("train_step") == 1
    assert not any_lookup.late
    ours = [name for name in names if name != "slice"]  # Orbax cuts what devices hold alike, to write it together
    assert len(ours) == len(set(ours)), ours


def test_e_is_compiled_once_with_its_lookup_and_not_again_to_count_its_flops(looped):
    assert looped.compiled.count("local") == 1
    assert set(looped.compiled) - {"slice"} == {"local", "train_step"}


def test_what_is_read_from_the_devices_is_what_is_logged(any_lookup):
    """A CPU's own guard sees what goes to the devices only, so that what comes from them is counted."""
    every_step = 6  # loss, three accuracies, neighbours of the true class, gradient norm
    when_saved = 1  # the offset of new classes, which is recorded beside the memory
    assert any_lookup.reads[1:] == [4 * every_step + when_saved] * 2  # neighbours are found before the first step


def test_where_the_time_and_the_memory_went(looped):
    board = events(looped.workdir)
    found = {name: [p.value for p in board.Scalars(f"train/{name}")] for name in (
        "data_ms", "devices_ms", "host_ms", "step_ms", "retrieve_ms", "train_ms", "lookup_ms", "host_memory_gb",
        "tflops_a_step", "tflops_per_second",
    )}  # fmt: skip
    assert {len(values) for values in found.values()} == {3}
    for i, total in enumerate(found["step_ms"]):
        parts = found["data_ms"][i] + found["devices_ms"][i] + found["host_ms"][i]
        measured = found["retrieve_ms"][i] + found["train_ms"][i]  # once in four steps
        assert parts + measured / 4 == pytest.approx(total, rel=0.02)
    assert min(found["lookup_ms"]) > 0 and min(found["retrieve_ms"]) > 0  # of all steps, and of the one measured
    assert 0.1 < found["host_memory_gb"][-1] < 64
    assert len(set(found["tflops_a_step"])) == 1
    assert found["tflops_a_step"][0] / (1e-3 * found["step_ms"][-1]) == pytest.approx(found["tflops_per_second"][-1])
    assert board.Scalars("start/seconds_to_first_step")[0].value > 0


def test_a_trace_for_tensorboard(looped):
    (trace,) = looped.workdir.glob("tensorboard/plugins/profile/*/*.xplane.pb")
    profile = jax.profiler.ProfileData.from_file(str(trace))
    events = [event for plane in profile.planes for row in plane.lines for event in row.events]
    assert any("train_step" in event.name for event in events)
    steps = {dict(event.stats).get("step_num") for event in events if event.name.split("#")[0] == "train"}
    assert steps >= {6, 7, 8, 9}  # the markers from which the Profile tab tells steps apart


def test_the_second_start_finds_the_training_step_compiled(looped, tmp_path):
    jax.clear_caches()  # as in a new process
    c = config()
    c.train.steps, c.memory.dir = 1, str(looped.workdir / "memory")
    with compiler_log() as (_, hits):
        train.train(c, tmp_path)
    assert "train_step" in hits


def test_where_compiled_programs_are_kept(tmp_path, monkeypatch):
    c = configs.default()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert compilation.folder(c) == tmp_path / "rac_jax" / "compiled"
    c.compiled = str(tmp_path / "mine")
    assert compilation.folder(c) == tmp_path / "mine"


def test_flops_are_counted_over_all_devices_and_compared_to_a_known_peak():
    product = jax.jit(lambda a, b: a @ b)
    assert monitor.flops(product, jnp.zeros((4, 8)), jnp.zeros((8, 16))) == 2 * 4 * 8 * 16

    class Device:
        device_kind = "NVIDIA A100-SXM4-80GB"

    found = monitor.arithmetic(312e12, 2.0, [Device(), Device()])
    assert found == {"tflops_a_step": 312, "tflops_per_second": 156, "model_flops_utilisation": 0.25}
    assert "model_flops_utilisation" not in monitor.arithmetic(1.0, 1.0, jax.devices())  # a CPU
    assert monitor.arithmetic(0.0, 1.0, [Device()]) == {}  # no count, no claim


@pytest.mark.parametrize(
    "kind, peak",
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L40", 181e12),
        ("NVIDIA L4", 121e12),
        ("TPU v5 lite", 197e12),
        ("TPU v5", 459e12),
        ("cpu", None),
    ],
)
def test_the_peak_of_a_device_by_its_name(kind, peak):
    assert monitor.peak_flops([types.SimpleNamespace(device_kind=kind)]) == peak


def test_a_step_is_counted_on_all_devices_and_nothing_is_compiled_for_it():
    mesh = jax.make_mesh((8,), ("data",))
    rows = jax.device_put(np.ones((16, 64), np.float32), NamedSharding(mesh, PartitionSpec("data")))
    weights = jax.device_put(np.ones((64, 32), np.float32), NamedSharding(mesh, PartitionSpec()))
    product = jax.jit(lambda a, b: a @ b)
    product(rows, weights)
    with compiler_log() as (compiled, _):
        assert 8 * monitor.flops(product, rows, weights) == 2 * 16 * 64 * 32
    assert not compiled


def test_the_line_under_the_bar():
    values = {"data_ms": 0.4, "train_ms": 80.2, "retrieve_ms": 12.0, "host_ms": 1.0, "devices_ms": 3.0, "loss": 1.0}
    assert monitor.line(values) == "data 0 retrieve 12 train 80 host 1"
