"""The cost of a step: training with and without retrieval, evaluation, memory, dispatch, and a comparison with PyTorch.

Contenders take turns in one process and medians are compared, so that other load on the machine affects all of them
equally. Images, keys and weights are synthetic; only the time of the search depends on them, and the keys have near
neighbours as real ones do. XLA counts the arithmetic of the compiled programs. CPUs compute in float32, all other
devices in bfloat16.
"""

import argparse
import copy
import dataclasses
import itertools
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
from absl import logging
from flax import nnx
from ml_collections import ConfigDict
from PIL import Image
from tqdm import tqdm

from rac_jax import config as configs
from rac_jax import data, evaluate, models, optimizer, sharding, train
from rac_jax.bench import beside_torch, made
from rac_jax.bench.race import median, race, ratio
from rac_jax.data import pipeline
from rac_jax.memory import build, columns, sources
from rac_jax.memory import made as made_keys
from rac_jax.models.rac import RAC, VoiceSettings
from rac_jax.retrieval import encoder as encoders
from rac_jax.run import Run
from rac_jax.train import State
from rac_jax.weights import parameters as model_parameters

CLASSES = 4
LOOKUPS = ("callback", "pipelined", "cached")


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    batch: int
    keys: int
    image_size: int
    rounds: int
    image: dict[str, int] = dataclasses.field(default_factory=dict)  # options of ViT-B/16, for B and E
    text: dict[str, int] = dataclasses.field(default_factory=dict)  # options of CLIP's text tower
    dispatch_depth: int = 12  # layers of the model whose step is dispatched
    torch_rounds: int = 9  # 0: no comparison with PyTorch, which needs a model of full depth


FULL = Sizes(batch=32, keys=62_500, image_size=224, rounds=3)
QUICK = Sizes(
    batch=32,
    keys=2_000,
    image_size=64,
    rounds=3,
    image={"width": 96, "depth": 1, "heads": 2},
    text={"width": 64, "depth": 1, "heads": 2},
    dispatch_depth=1,
    torch_rounds=0,
)


def main(arguments: Sequence[str] = ()) -> None:
    """Print one table after another."""
    parser = argparse.ArgumentParser("rac_jax.bench step", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small models: shows that it runs, not how fast")
    sizes = QUICK if parser.parse_args(arguments).quick else FULL
    logging.set_verbosity(logging.ERROR)  # the memory holds made keys, not the training split
    with tempfile.TemporaryDirectory() as folder:
        config = settings(sizes, Path(folder))
        print(f"{jax.device_count()} × {jax.default_backend()}, {config.model.dtype}, batch {config.train.batch_size}")
        print_dispatch(sizes.dispatch_depth)  # first, while this is the only model in the process, as in training
        write_images(Path(config.data.root), config)
        write_memory(config, sizes.keys)
        measure(config, sizes, Path(folder))
    if sizes.torch_rounds:
        beside_torch.print_table(sizes.torch_rounds)


def settings(sizes: Sizes, folder: Path) -> ConfigDict:
    """RAC with ViT-B/16 for B and E and CLIP's text tower, or what `sizes` makes of them."""
    c = configs.default("bench")
    c.data.name, c.data.root, c.data.image_size = "folder", str(folder / "images"), sizes.image_size
    c.model.base.update(sizes.image)
    c.model.encoder.update(sizes.image)
    c.model.text.update(sizes.text)
    c.model.dtype = "float32" if jax.default_backend() == "cpu" else "bfloat16"
    c.memory.dir = str(folder / "memory")
    devices = jax.device_count()
    c.train.batch_size = c.eval.batch_size = sharding.padded_size(sizes.batch, devices)
    return c


def write_images(root: Path, config: ConfigDict) -> None:
    """One batch of noise for training and one for evaluation."""
    rng, size = np.random.default_rng(0), config.data.image_size
    for split, number in itertools.product(("train", "test"), range(config.train.batch_size)):
        folder = root / split / f"class {number % CLASSES}"
        folder.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (size, size, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.jpg")


def write_memory(config: ConfigDict, rows: int) -> None:
    """A memory of made keys and texts."""
    mesh = sharding.make_mesh(config)
    encoder = encoders.load(config, mesh)
    texts = pa.array([f"place number {row % made.TEXTS}" for row in range(rows)], pa.large_string())
    table = columns.make(texts, [str(row) for row in range(rows)])
    content = sources.Content("made", "", "made", table, keys=made_keys.keys(rows, encoder.width))
    recipe = build.make_recipe(config, encoder)
    folder = Path(config.memory.dir)
    build.add(config, recipe, "made", content, encoder, folder=folder, mesh=mesh)


@dataclasses.dataclass
class Contender:
    """A run, its compiled step and its state."""

    run: Run
    state: State
    step: Any  # compiled
    batch: pipeline.Batch

    def steps(self, lookup: str) -> Callable[[], None]:
        """One training step of this run, its neighbours looked up in this way."""
        fed = with_lookup(self.run, lookup).feed(itertools.repeat(self.batch), split="train", training=True)

        def once() -> None:
            placed, found = next(fed)
            self.state, metrics = self.step(self.state, placed, found, self.run.knowledge)
            jax.block_until_ready((self.state, metrics))
            self.run.check()

        return once

    def evaluations(self, lookup: str) -> Callable[[], None]:
        """One evaluated batch."""
        fed = with_lookup(self.run, lookup).feed(itertools.repeat(self.batch), split="train", training=False)
        eval_step, retrieval = evaluate.make_eval_step(self.run), self.run.retriever
        assert retrieval is not None

        def once() -> None:
            placed, found = next(fed)
            jax.block_until_ready(eval_step(self.state.params, self.state.stats, placed, found, retrieval.knowledge))

        return once


def measure(config: ConfigDict, sizes: Sizes, folder: Path) -> None:
    """Training, lookup, evaluation and memory of one model."""
    with tqdm(total=4, desc="compile", leave=False) as bar:
        base = make_run(with_voices(config, "base"), folder)
        bar.update()
        rac = make_run(config, folder)
        bar.update()
        retrieval = rac.run.retriever
        assert retrieval is not None
        images = sharding.put_batch(rac.run.mesh, {"image": rac.batch["image"]})["image"]
        encoder: Any = retrieval.keys_program
        encode = flops(encoder.lower(retrieval.encoder.parameters, images).compile())
        bar.update()
        saving = remat_step(rac)
        bar.update()
    one, both = flops(base.step), flops(rac.step)
    work = {"base": one, "callback": both + encode, "pipelined": both + encode, "cached": both}
    contenders = {"base": base.steps("callback")} | {lookup: rac.steps(lookup) for lookup in LOOKUPS}
    times = race(contenders, sizes.rounds, "train")
    print(f"\n{'training':<24}{'ms a step':>12}{'× base':>10}{'FLOPs × base':>15}{'time : FLOPs':>15}")
    for name, seconds in times.items():
        slower, more = ratio(times, name, "base"), work[name] / one
        print(f"  {name:<22}{1e3 * median(seconds):>12.0f}{slower:>10.2f}{more:>15.2f}{slower / more:>15.2f}")
    retrieval.lookup.take_milliseconds()
    contenders["callback"]()
    lookup_ms = retrieval.lookup.take_milliseconds() * jax.local_device_count()
    share = lookup_ms / (1e3 * median(times["callback"]))
    print(f"  lookup and tokens among {sizes.keys:,} keys: {lookup_ms:.0f} ms a batch, {share:.1%} of the step")
    print_evaluation(rac, sizes)
    print(f"\n{'memory of the step':<24}{'arguments':>12}{'temporary':>12}")
    for name, step in (("as it is", rac.step), ("remat", saving)):
        found = step.memory_analysis()
        print(f"  {name:<22}{_megabytes(found.argument_size_in_bytes)}{_megabytes(found.temp_size_in_bytes)}")


def _megabytes(size: int) -> str:
    return f"{size / 1e6:>9,.0f} MB"


def make_run(config: ConfigDict, folder: Path) -> Contender:
    """A run of this config, with its step compiled."""
    run = Run.from_config(config, folder)
    images = run.dataset.split("train")
    tx = optimizer.from_config(config, len(images))
    state = train.initial_state(run, tx)
    transform = data.train_transform(config)
    batches = pipeline.train_batches(images, transform, batch_size=config.train.batch_size, seed=0, workers=0)
    contender = Contender(run, state, None, next(batches))
    contender.step = compiled_step(contender, nnx.graphdef(run.model))
    return contender


def compiled_step(contender: Contender, graph: Any) -> Any:
    """The training step of a model of this structure, compiled for the run's state and batch."""
    run, state = contender.run, contender.state
    config, dataset = run.config, run.dataset
    tx = optimizer.from_config(config, len(dataset.split("train")))
    step = train.make_train_step(config, graph, tx, dataset.class_counts, mesh=run.mesh)
    places = jax.tree.map(lambda array: array.sharding, state)
    jitted = jax.jit(step, out_shardings=(places, sharding.replicated(run.mesh)), donate_argnums=0)
    placed, found = run.put(contender.batch, training=True)
    return jitted.lower(state, placed, found, run.knowledge).compile()


def remat_step(contender: Contender) -> Any:
    """The same step with activations computed again instead of kept; it is compiled, not run."""
    model = copy.deepcopy(contender.run.model)
    trained: Any = (model.base, model.text)
    for encoder in trained:
        encoder.remat = True
    return compiled_step(contender, nnx.graphdef(model))


def print_evaluation(contender: Contender, sizes: Sizes) -> None:
    """Images a second of E, B and T; with neighbours from a cache, of B and T."""
    times = race({lookup: contender.evaluations(lookup) for lookup in LOOKUPS}, sizes.rounds, "evaluate")
    print(f"\n{'evaluation':<24}{'images/s':>12}")
    for name, seconds in times.items():
        print(f"  {name:<22}{contender.run.config.eval.batch_size / median(seconds):>12.1f}")


def print_dispatch(depth: int) -> None:
    """How long Python needs to start a step of the default model, whose layers are made narrow here."""
    state, step, arguments = narrow_step(depth)
    parameters, arrays = len(jax.tree.leaves(state.params)), len(jax.tree.leaves(state))
    times = []
    for _ in range(65):
        start = time.thread_time()  # Python's own thread, whatever else runs
        state, metrics = step(state, *arguments)
        times.append(time.thread_time() - start)
        jax.block_until_ready((state, metrics))
    usual, best = 1e3 * median(times[5:]), 1e3 * min(times[5:])
    print(f"\ndispatch of {parameters} parameters, {arrays} arrays in all: {usual:.1f} ms a step, at best {best:.1f}")


def narrow_step(depth: int = 12) -> tuple[State, Callable, tuple[Any, ...]]:
    """State, step, and the step's other arguments, of a narrow model of the default depth."""
    config, rngs = configs.default("bench"), nnx.Rngs(0)
    narrow: dict[str, Any] = {"width": 8, "heads": 1, "mlp_width": 8, "depth": depth, "rngs": rngs}
    base = models.create("vit_b16", image_size=16, **narrow)
    text = models.create("clip_text", projection=8, vocab_size=100, **narrow)
    model = RAC(base, text, num_classes=CLASSES, settings=VoiceSettings(), rngs=rngs)
    graph, params, stats = model_parameters.split(model)
    tx = optimizer.from_config(config, images=1000)
    state = State(jnp.int32(0), params, stats, tx.init(params))
    step = train.make_train_step(config, graph, tx, np.ones(CLASSES, int), mesh=sharding.make_mesh(config))
    batch = {"image": jnp.zeros((1, 16, 16, 3), jnp.uint8), "label": jnp.zeros(1, jnp.int32), "mask": jnp.ones(1, bool)}
    none = jnp.zeros((1, 1), jnp.float32)
    found = {"tokens": jnp.ones((1, 77), jnp.int32), "rows": none.astype(jnp.int32), "similarities": none}
    found |= {"key": none, "inside": jnp.zeros(1, jnp.float32), "own_weight": jnp.zeros(1, jnp.float32)}
    found |= {"own_label": jnp.zeros(1, jnp.int32)}
    return state, jax.jit(step, donate_argnums=0), (batch, found, None)


def with_lookup(run: Run, lookup: str) -> Run:
    """The same run, with neighbours looked up in another way."""
    config = run.config.copy_and_resolve_references()
    config.memory.lookup = lookup
    return dataclasses.replace(run, config=config)


def with_voices(config: ConfigDict, voices: str) -> ConfigDict:
    """The same config for other voices."""
    config = config.copy_and_resolve_references()
    config.model.voices = voices
    return config


def flops(compiled: Any) -> float:
    """Floating-point operations of a compiled program on one device, as XLA counts them."""
    return compiled.cost_analysis()["flops"]
