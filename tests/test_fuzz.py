"""Damaged run folders: evaluation ends in one sentence or has the right parameters, never a trace or wrong ones."""

import shutil

import jax
import numpy as np
import pytest

from rac_jax import data, evaluate, sharding, train
from rac_jax.checkpoints import Checkpoints
from rac_jax.data import record
from rac_jax.run import Run
from rac_jax.runtime import commands, workdirs
from rac_jax.weights import parameters
from tests import tiny

ATTEMPTS = 150


def config():
    c = tiny.config("base", devices=1)
    c.train.steps, c.checkpoint.every, c.checkpoint.keep = 2, 1, 2
    return c


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run's folder without what evaluation does not read, its data set, and the shapes of its state."""
    workdir = tmp_path_factory.mktemp("finished")
    train.train(config(), workdir, evaluated=False)
    shutil.rmtree(workdir / "tensorboard")
    run = Run.from_config(config(), workdir)
    _, params, stats = parameters.split(run.model)
    return workdir, data.load(config()), sharding.state(run.mesh, {"params": params, "stats": stats})


def restored(workdir, dataset, like):
    """The step and parameters that an evaluation of the folder would use: what evaluate.restore does, in its order."""
    workdirs.check(config(), workdir)
    evaluate._say_what_is_new(config(), record.read(workdir) or record.describe(dataset, ""), dataset)
    with Checkpoints.read(workdir) as checkpoints:
        step, state, _ = checkpoints.load(None, like)
    return step, jax.tree.map(np.asarray, state)


def damage(path, random):
    """Change a file in one of the ways in which files go bad."""
    content = bytearray(path.read_bytes())
    way = random.choice(["flip", "zeros", "cut", "grow", "empty", "gone"], p=[0.5, 0.1, 0.15, 0.1, 0.05, 0.1])
    place = int(random.integers(max(len(content), 1)))
    if way == "flip" and content:
        content[place] ^= 1 << int(random.integers(8))
    elif way == "zeros":
        content[place : place + 64] = bytes(len(content[place : place + 64]))
    elif way == "cut":
        del content[place:]
    elif way == "grow":
        content[place:place] = random.bytes(16)
    elif way == "empty":
        content.clear()
    path.write_bytes(content)
    if way == "gone":
        path.unlink()
    return way


@pytest.mark.slow
def test_damaged_files_of_a_run_end_in_one_sentence_or_the_right_parameters(finished, tmp_path, capsys):
    workdir, dataset, like = finished
    expected = restored(*finished)
    assert expected[0] == 2
    names = sorted(str(path.relative_to(workdir)) for path in workdir.rglob("*") if path.is_file())
    random, refused = np.random.default_rng(0), 0
    for attempt in range(ATTEMPTS):
        copy = tmp_path / "copy"
        shutil.copytree(workdir, copy)
        name = names[random.integers(len(names))]
        what = f"{name}: {damage(copy / name, random)}, attempt {attempt}"
        try:
            step, state = restored(copy, dataset, like)
        except Exception as error:
            message = commands._message(error)
            assert message.startswith("error: ") and "is a bug" not in message, f"{what}: {capsys.readouterr().err}"
            refused += 1
        else:
            assert step == expected[0], what
            same = jax.tree.map(np.array_equal, state, expected[1])
            assert all(jax.tree.leaves(same)), what
        shutil.rmtree(copy)
    assert ATTEMPTS // 4 < refused < ATTEMPTS
