"""kill −9 while a memory is built, added to and compacted: nothing half-written is ever read, nothing is done twice."""

import hashlib
import multiprocessing
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pytest

from rac_jax import config as configs
from rac_jax import sharding
from rac_jax.data.sets import digits
from rac_jax.memory import build, check, columns, edit, index, manifest, store
from rac_jax.memory.sources import Content
from rac_jax.models.preprocessing import HALF
from rac_jax.retrieval.encoder import Encoder
from tests.memory.test_build import encode

pytestmark = pytest.mark.slow
KILLS = 7  # of each: build, add, compact
QUERIES = np.random.default_rng(1).normal(size=(9, 16)).astype(np.float32)
TOUCH_A_FILE = ("open", "os.rename", "os.remove", "os.truncate")


def _digits(folder, config, mesh, encoder):
    dataset = digits.load(0)
    build.open_or_build(config, dataset, encoder, folder=folder, mesh=mesh)


def _more(folder, config, mesh, encoder):
    """Add 300 keys that were made elsewhere."""
    keys = np.random.default_rng(0).normal(size=(300, 16)).astype(np.float32)
    table = columns.make(pa.array([f"text {i % 7}" for i in range(300)]), [f"more/{i}" for i in range(300)])
    content = Content("test", "", hashlib.sha256(keys.tobytes()).hexdigest(), table, keys=keys)
    recipe = manifest.read(folder).recipe
    build.add(config, recipe, "more", content, encoder, folder=folder, mesh=mesh)


def _compact(folder, config, mesh, encoder):
    with edit.editing(folder) as editor:
        editor.compact()


def work(job, folder, dies_at, started):
    """What a killed process does: one job. It kills itself at its file operation number `dies_at`, if there is one."""
    build.SHARD = 64
    config = configs.default()
    config.data.image_size, config.memory.encode_batch, config.mesh.data = 16, 32, 1
    mesh = sharding.make_mesh(config)
    parameters = sharding.put_replicated(mesh, {"scale": jnp.float32(1)})
    operations = 0

    def count(event, arguments):
        nonlocal operations
        if event in TOUCH_A_FILE and str(folder) in str(arguments[0]):
            operations += 1
            if operations == dies_at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    started.set()
    job(folder, config, mesh, Encoder(encode, parameters, HALF, 16))


class Victims:
    """Starts processes quickly, from one that has imported everything, and kills them."""

    def __init__(self):
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["tests.memory.test_kill"])

    def run(self, job, folder, *, dies_at=0, killed_after=None):
        """Returns whether the process got to its end, and how long it took."""
        started = self.context.Event()
        process = self.context.Process(target=work, args=(job, folder, dies_at, started))
        process.start()
        assert started.wait(60)
        begun = time.monotonic()
        process.join(killed_after)
        process.kill()
        process.join()
        assert process.exitcode in (0, -signal.SIGKILL)
        return process.exitcode == 0, time.monotonic() - begun


@pytest.fixture(scope="module")
def victims():
    return Victims()


@pytest.fixture(scope="module")
def built(victims, tmp_path_factory):
    """An undisturbed memory of the digits, and how long it took."""
    folder = tmp_path_factory.mktemp("built") / "m"
    ended, seconds = victims.run(_digits, folder)
    assert ended
    return folder, seconds


def contents(folder):
    """All that a memory says, but for when."""
    memory = store.read(folder)
    assert check.problems(folder) == []
    rows, similarities = index.search(memory.index, QUERIES, 9, 64, memory.allowed())
    return {
        "images": [[memory.images[row] for row in mine] for mine in rows],
        "texts": [memory.texts.take(memory.text_of[mine]) for mine in rows],
        "similarities": similarities.tolist(),
        "keys": memory.keys.tobytes() if memory.allowed() is None else None,
        "fingerprint": memory.fingerprint,
        "thumbnails": [[memory.thumbnail(row) for row in mine] for mine in rows],
    }


def test_a_build_that_is_killed_goes_on_and_ends_as_if_it_had_not_been(victims, built, tmp_path):
    """Two of three times at a file operation, and else at a moment of the clock."""
    reference, seconds = built
    random = np.random.default_rng(2)
    folder, kills, progress, gone_on = tmp_path / "0", 0, 0, 0
    while kills < KILLS:
        by_clock = kills % 3 == 2
        when = {"killed_after": random.uniform(0, seconds)} if by_clock else {"dies_at": random.integers(20, 33)}
        ended, _ = victims.run(_digits, folder, **when)
        kills += not ended
        if ended:
            assert contents(folder) == contents(reference)
            folder, progress = tmp_path / str(kills), 0
        elif (folder / "manifest.json").exists():
            found = manifest.read(folder)
            done = found.sources[0].encoded if found.sources else 0
            assert done >= progress and done % 64 in (0, 466 % 64)  # whole shards, and none is lost
            gone_on += done > progress > 0
            progress = done
            if found.index is None:
                with pytest.raises(manifest.BadMemory, match="not finished"):
                    store.read(folder)
    assert gone_on  # some began where one before was killed, and got further
    assert victims.run(_digits, folder)[0]
    assert contents(folder) == contents(reference)


@pytest.mark.parametrize("job", [_more, _compact])
def test_add_and_compact_are_done_or_not_done(victims, built, tmp_path, job):
    start, end = tmp_path / "start", tmp_path / "end"
    shutil.copytree(built[0], start)
    if job is _compact:
        assert victims.run(_more, start)[0]
        with edit.editing(start) as editor:
            editor.set_state("more", manifest.REMOVED)
    shutil.copytree(start, end)
    assert victims.run(job, end)[0]
    before, after = contents(start), contents(end)
    random = np.random.default_rng(3)
    most = 21 if job is _compact else 50  # file operations of an undisturbed one, about
    for number, dies_at in enumerate(random.choice(np.arange(1, most), KILLS, replace=False)):
        folder = tmp_path / str(number)
        shutil.copytree(start, folder)
        ended, _ = victims.run(job, folder, dies_at=int(dies_at))
        assert contents(folder) in (before, after)
        if not ended:
            assert victims.run(job, folder)[0]  # the same again: it goes on, or finds it done
        assert contents(folder) == after
        assert not [path for path in Path(folder).iterdir() if "writing" in path.name]
