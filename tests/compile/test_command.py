"""Programs compiled from shapes alone, on simulated devices and, where their compilers are installed, for others."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from configs import demo
from rac_jax import sharding
from rac_jax.compile import estimate, largest, programs, report, targets
from rac_jax.retrieval import tokenizers
from tests import tiny
from tests.test_configs import shrink

ROOT = Path(__file__).parents[2]


def config():
    """The demo with small transformers for B, E and T, wide enough that products outweigh everything else."""
    c = tiny.config(devices=-1)
    for role in ("base", "encoder"):
        c.model[role].update(name="vit_ti16", weights="", width=128, depth=1, heads=2, patch=8)
    c.memory.lookup = "pipelined"
    return c


@pytest.fixture(scope="module")
def compiled():
    """Everything a run consists of, compiled for the 8 simulated devices."""
    target = targets.parse("cpu:8")[0]
    found = programs.of_run(config(), jax.devices(), 10, 466)
    return found, {name: estimate.compile_program(program, target) for name, program in found.items()}


def test_the_programs_of_a_run(compiled):
    assert set(compiled[1]) == {"train", "evaluate", "keys", "callback", "device"}
    train = compiled[1]["train"]
    state = compiled[0]["train"].arguments[0]
    numbers = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    batch = 2 * (32 * 32 * 3 + 4 + 4 + 1) + 2 * 77 * 4  # two of the 16 examples
    assert train.arguments == pytest.approx(numbers + batch, rel=0.01)
    assert train.collectives["all-reduce"].payload >= sum(leaf.size for leaf in jax.tree.leaves(state.params)) * 4 * 0.5
    assert not compiled[1]["keys"].collectives  # each device encodes its own images
    assert set(compiled[1]["device"].collectives) == {"all-gather", "all-to-all"}


@pytest.mark.parametrize("name", ["keys", "evaluate"])
def test_flops_are_about_those_that_xla_counts(compiled, name):
    program = compiled[0][name]
    xla = program.function.lower(*program.arguments).compile().cost_analysis()["flops"]
    ours = compiled[1][name].flops.total() / 8
    assert 0.7 * xla < ours <= 1.02 * xla  # XLA counts elementwise operations too


def test_training_is_three_times_the_work_of_evaluation(compiled):
    train, evaluate = (compiled[1][name].flops.total() for name in ("train", "evaluate"))
    pixels = 2 * 16 * 192 * 128  # the patch embedding, whose input has no gradient
    assert train / 16 == pytest.approx(3 * evaluate / 128 - pixels, rel=0.01)  # per example


def test_a_report_for_an_accelerator(compiled):
    """As if the programs had been compiled for it."""
    text = report.report(config(), targets.parse("a100:8")[0], compiled[1], 466)
    assert "8 × NVIDIA A100-SXM4-40GB: batch 16" in text and "fits" in text
    assert "assumed peak: 312 TFLOP/s bfloat16, 156 float32" in text
    assert "assumed bandwidth: 1,555 GB/s" in text and "assumed interconnect: 300 GB/s" in text
    assert "an epoch of 30 steps" in text
    assert report.row(config(), targets.parse("a100:8")[0], compiled[1], 466).count("|") == 10
    low, high = (1e3 * t for t in estimate.step_seconds([compiled[1]["train"]], targets.parse("a100:8")[0].device))
    assert text.endswith(f"estimate: with memory.lookup=cached, a step {low:.1f} to {high:.1f} ms")
    c = config()
    c.memory.lookup = "cached"
    assert "memory.lookup=cached" not in report.report(c, targets.parse("a100:8")[0], compiled[1], 466)


def test_memory_and_time(compiled):
    device = targets.parse("a100:8")[0].device
    need = estimate.memory(config(), compiled[1], device)
    assert need.resident == compiled[1]["train"].arguments + compiled[1]["keys"].arguments
    assert need.left == int(0.75 * device.memory) - need.need
    times = estimate.seconds(compiled[1]["train"], device)
    assert times.arithmetic == pytest.approx(compiled[1]["train"].flops.total() / 8 / 156e12)  # all float32
    assert times.best == max(times.arithmetic, times.memory, times.collectives) < times.worst


@pytest.mark.parametrize("most, expected", [(1000, 192), (600, 96), (210, 0)])
def test_the_largest_batch_is_found_in_few_compilations(most, expected):
    asked = []

    def need(batch):
        asked.append(batch)
        return 200 + 4 * batch

    batch, used = largest.search(need, start=40, used=need(40), limit=most, multiple=8)
    assert batch <= (most - 200) / 4 and batch >= 0.95 * expected and len(asked) <= 6
    assert used == (200 + 4 * batch if batch else 0)


@pytest.mark.parametrize("most, expected", [(1000, 192), (600, 96), (210, 0)])
def test_the_largest_batch_is_found_where_the_configs_own_cannot_be_compiled(most, expected):
    """Before, the search never began. The compiler gives up at twice the limit."""
    asked = []

    def need(batch):
        asked.append(batch)
        found = 200 + 4 * batch
        return found if found <= 2 * most else None

    batch, used = largest.search(need, start=8000, used=None, limit=most, multiple=8)
    assert batch <= (most - 200) / 4 and batch >= 0.95 * expected and batch % 8 == 0
    assert asked[0] == 4000 and len(asked) <= 12 and len(set(asked)) == len(asked)
    assert used == (200 + 4 * batch if batch else 0)


def test_a_program_that_does_not_fit_leaves_the_others(monkeypatch):
    mesh = sharding.make_mesh(config())
    made = [programs.Program(name, None, (), mesh) for name in ("train", "keys")]

    def compile_program(program, target):
        if program.name == "train":
            raise estimate.TooLarge("train does not fit")
        return program.name

    monkeypatch.setattr(estimate, "compile_program", compile_program)
    compiled, lowered, too_large = estimate.compile_each(made, targets.parse("cpu:8")[0])
    assert compiled == {"keys": "keys"} and not lowered and str(too_large["train"]) == "train does not fit"


def test_an_index_on_the_devices_is_counted(compiled):
    """Before, neither its keys nor its search were."""
    c, (shapes, made) = config(), compiled
    c.memory.index, c.memory.lookup = "device", "callback"
    device = targets.parse("a100:8")[0].device
    need = estimate.memory(c, made, device)
    assert need.resident == made["train"].arguments + made["device"].arguments
    keys = shapes["device"].arguments[0]["keys"]
    assert made["device"].arguments - made["keys"].arguments > keys.size // 8 * keys.dtype.itemsize > 0
    assert need.temporaries == max(program.temporaries for program in made.values())
    assert [program.name for program in estimate.of_a_step(c, made)] == ["train", "device"]
    assert "GB are left beside the index" in report.report(c, targets.parse("a100:8")[0], made, 466)
    c.memory.lookup = "cached"
    assert [program.name for program in estimate.of_a_step(c, made)] == ["train"]
    assert [program.name for program in estimate.of_a_step(config(), made)] == ["train", "keys"]


def test_training_on_views_knows_the_keys_of_plain_images():
    """As retrieval/feed.py gives them. Before, another program was compiled than the run needs."""
    c = shrink(demo.get_config())
    found = programs.of_run(c, jax.devices(), 14, 297)
    trained, evaluated = found["train"].arguments[2], found["evaluate"].arguments[3]
    assert trained["own_key"].shape == trained["key"].shape == (16, 24) and trained["own_key"].dtype == "float32"
    assert "own_key" not in evaluated and trained["activation"].shape[:2] == (16, 1)
    c.train.views = 1
    assert "own_key" not in programs.of_run(c, jax.devices(), 14, 297)["train"].arguments[2]
    c.train.views, c.memory.lookup = 0, "callback"
    assert "own_key" in programs.of_run(c, jax.devices(), 14, 297)["train"].arguments[2]


def test_the_sizes_of_tokenizers_are_right():
    real = tokenizers.clip()
    assert programs.VOCABULARIES["clip_text"] == (real.vocab_size, real.length)


SMALL = [
    "--config=configs/digits.py:base", "--config.model.base.name=vit_ti16", "--config.model.base.weights=",
    "--config.model.base.width=32", "--config.model.base.depth=1", "--config.model.base.heads=2",
]  # fmt: skip


def command(*arguments):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("XLA_FLAGS")
    return subprocess.run(
        [sys.executable, "-m", "rac_jax.compile", *arguments],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_the_command_on_simulated_devices():
    done = command(*SMALL, "--target=cpu:2")
    assert done.returncode == 0, done.stderr
    assert "digits_base on 2 × cpu: batch 32" in done.stdout and "all-reduce" in done.stdout


@pytest.mark.parametrize("target", ["a100:2", "v5e:4"])
def test_the_command_for_devices_that_are_not_there(target):
    try:
        targets.require_compiler(targets.parse(target)[0])
    except targets.MissingCompiler as missing:
        done = command(*SMALL, f"--target={target}")
        assert done.returncode == 1 and str(missing) in done.stderr and "Traceback" not in done.stderr
        pytest.skip(str(missing))
    done = command(*SMALL, f"--target={target}")
    assert done.returncode == 0, done.stderr
    assert "all-reduce" in done.stdout and "fits" in done.stdout and "estimate: a step" in done.stdout
