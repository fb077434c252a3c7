"""Our models compared with the same models in PyTorch, on the CPU in float32, each in a process of its own.

Needs torch and timm, which are in no requirements file of this project. The two processes take turns, each with its
default threads and heap: ours has huge pages, as all commands of this project (`runtime/starting.py`), PyTorch's has
not. The models have their full depth: our last block computes only the row that is used, which would be an unfair
advantage in a model of few blocks.
"""

import argparse
import contextlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from rac_jax import models
from rac_jax.bench.race import median, race, ratio
from rac_jax.runtime import starting
from rac_jax.weights import parameters

BATCH = 8
END = 49407  # CLIP's end token
NEEDED = ("torch", "timm", "transformers")
MODELS = {
    "vit_b16": "ViT-B/16",
    "clip_text": "CLIP text",
    "efficientnet_lite0": f"EfficientNet-Lite0, 64 px, {4 * BATCH} images",
}
WORKS = ("forward", "forward + backward")
Work = Callable[[], Any]


def main(arguments: Sequence[str] = ()) -> None:
    """Print the table alone; it is also the last one of `bench step`."""
    parser = argparse.ArgumentParser("rac_jax.bench torch", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--same-heap", action="store_true", help="huge pages for PyTorch as well")
    given = parser.parse_args(arguments)
    print_table(given.rounds, given.models, same_heap=given.same_heap)


def print_table(rounds: int, wanted: Sequence[str] = tuple(MODELS), *, same_heap: bool = False) -> None:
    """Times of forward, and of forward and backward, in turns."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing or jax.default_backend() != "cpu":
        why = f"not installed: {', '.join(missing)}" if missing else "it is made on CPUs only"
        print(f"\ncomparison with PyTorch skipped: {why}")
        return
    print(f"\n{f'beside PyTorch, batch {BATCH}':<60}{'ours, ms':>10}{'torch, ms':>11}{'ratio':>8}")
    huge = {name: value for name, value in os.environ.items() if name == starting.HEAP}
    for model in wanted:
        name, their_heap = MODELS[model], huge if same_heap else {}
        with _process("ours", model, huge) as ours, _process("torch", model, their_heap) as theirs:
            for number, what in enumerate(WORKS):
                turns = {"ours": lambda n=number: ours(n), "torch": lambda n=number: theirs(n)}
                times = race(turns, rounds, name)
                our_ms, their_ms = (1e3 * median(seconds) for seconds in times.values())
                print(f"  {f'{name}, {what}':<58}{our_ms:>10.0f}{their_ms:>11.0f}{ratio(times, 'ours', 'torch'):>8.2f}")


@contextlib.contextmanager
def _process(side: str, model: str, heap: dict[str, str]) -> Iterator[Callable[[int], None]]:
    """A process with this model; a call runs one of its WORKS, by number, and waits for it."""
    # Ours starts as the commands do: that module sets what jax reads from the environment.
    first = "import rac_jax.runtime.commands; " if side == "ours" else ""
    program = f"{first}from rac_jax.bench import beside_torch; beside_torch.serve({side!r}, {model!r})"
    command = [sys.executable, "-c", program]
    environment = {name: value for name, value in os.environ.items() if name != starting.HEAP} | heap
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    with subprocess.Popen(command, env=environment, **pipes) as process:
        asked, said = process.stdin, process.stdout
        assert asked is not None and said is not None

        def once(work: int) -> None:
            asked.write(f"{work}\n")
            if said.readline() != "done\n":
                raise RuntimeError(f"the process of {model} ({side}) has ended")

        yield once


def serve(side: str, model: str) -> None:
    """The loop of such a process: for each line of input it runs a work and prints a line."""
    size = 64 if model == "efficientnet_lite0" else 224
    inputs = _tokens() if model == "clip_text" else _images(size, 4 * BATCH if size == 64 else BATCH)
    if side == "ours":
        ours = models.create(model) if model == "clip_text" else models.create(model, image_size=size)
        works = _ours(ours, inputs)
    else:
        makers = {"vit_b16": _torch_vit, "clip_text": _torch_text, "efficientnet_lite0": _torch_lite}
        works = _theirs(makers[model](), inputs)
    for line in sys.stdin:
        works[int(line)]()
        print("done", flush=True)


def _images(size: int, batch: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(batch, size, size, 3)).astype(np.float32)


def _tokens() -> np.ndarray:
    tokens = np.random.default_rng(0).integers(1, END, size=(BATCH, 77)).astype(np.int32)
    tokens[:, -1] = END
    return tokens


def _ours(model: Any, inputs: np.ndarray) -> tuple[Work, Work]:
    """Forward; and the gradient of the features' mean square, to all parameters."""
    graph, params, stats = parameters.split(model)
    x = jnp.asarray(inputs)

    def forward(params: Any, x: jax.Array) -> jax.Array:
        return nnx.merge(graph, params, stats)(x)

    def loss(params: Any, x: jax.Array) -> jax.Array:
        return jnp.mean(forward(params, x) ** 2)

    compiled = [jax.jit(f).lower(params, x).compile() for f in (forward, jax.grad(loss))]
    return tuple(lambda f=f: jax.block_until_ready(f(params, x)) for f in compiled)  # type: ignore[return-value]


def _theirs(model: Any, inputs: np.ndarray) -> tuple[Work, Work]:
    import torch

    torch.set_num_threads(os.cpu_count() or 1)
    x = torch.from_numpy(inputs.transpose(0, 3, 1, 2)) if inputs.ndim == 4 else torch.from_numpy(inputs).long()
    if inputs.ndim == 4:
        x = x.contiguous(memory_format=torch.channels_last)

    def features() -> Any:
        return model(x).text_embeds if inputs.ndim == 2 else model(x)

    def forward() -> None:
        with torch.no_grad():
            features()

    def both() -> None:
        model.zero_grad(set_to_none=True)
        features().square().mean().backward()

    return forward, both


def _torch_vit() -> Any:
    import timm

    return timm.create_model("vit_base_patch16_224", num_classes=0)


def _torch_lite() -> Any:
    """Its batch norms use their running statistics, as ours do."""
    import timm
    import torch

    return timm.create_model("efficientnet_lite0", num_classes=0).eval().to(memory_format=torch.channels_last)


def _torch_text() -> Any:
    from transformers import CLIPTextConfig, CLIPTextModelWithProjection

    sizes: dict[str, Any] = {
        "hidden_size": 512,
        "intermediate_size": 2048,
        "projection_dim": 512,
        "num_attention_heads": 8,
    }
    return CLIPTextModelWithProjection(CLIPTextConfig(num_hidden_layers=12, eos_token_id=END, **sizes))
