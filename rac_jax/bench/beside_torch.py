"""Our models beside the same ones in PyTorch, on the CPU and in float32.

Needs torch, timm and transformers, which are in no requirements file of this project. Our last block computes the row
that is read and no other, so a model of few layers flatters us: only the full depth says how fast we are.
"""

import importlib.util
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from rac_jax import models, states
from rac_jax.bench.race import median, race, ratio

BATCH = 8
END = 49407  # CLIP's end token
NEEDED = ("torch", "timm", "transformers")
Work = Callable[[], Any]


def print_table(*, depth: int, rounds: int) -> None:
    """Times of forward, and of forward and backward, in turns."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing or jax.default_backend() != "cpu":
        why = f"{', '.join(missing)} not installed" if missing else "it is compared on CPUs"
        print(f"\nbeside PyTorch: left out, {why}")
        return
    print(f"\n{f'beside PyTorch, batch {BATCH}':<54}{'ours, ms':>10}{'torch, ms':>11}{'ratio':>8}")
    for name, inputs, ours, theirs in (
        (f"ViT-B/16, {depth} layers", _images(224, BATCH), models.create("vit_b16", depth=depth), _torch_vit(depth)),
        (f"CLIP text, {depth} layers", _tokens(), models.create("clip_text", depth=depth), _torch_text(depth)),
        (
            f"EfficientNet-Lite0, 64 px, {4 * BATCH} images",
            _images(64, 4 * BATCH),
            models.create("efficientnet_lite0", image_size=64),
            _torch_lite(),
        ),
    ):
        pairs = zip(_ours(ours, inputs), _theirs(theirs, inputs), strict=True)
        for what, (our_work, their_work) in zip(("forward", "forward + backward"), pairs, strict=True):
            times = race({"ours": our_work, "torch": their_work}, rounds, name)
            our_ms, their_ms = (1e3 * median(seconds) for seconds in times.values())
            print(f"  {f'{name}, {what}':<52}{our_ms:>10.0f}{their_ms:>11.0f}{ratio(times, 'ours', 'torch'):>8.2f}")


def _images(size: int, batch: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(batch, size, size, 3)).astype(np.float32)


def _tokens() -> np.ndarray:
    tokens = np.random.default_rng(0).integers(1, END, size=(BATCH, 77)).astype(np.int32)
    tokens[:, -1] = END
    return tokens


def _ours(model: Any, inputs: np.ndarray) -> tuple[Work, Work]:
    """Forward; and the gradient of the features' mean square, to all parameters."""
    graph, params, stats = states.split(model)
    x = jnp.asarray(inputs)

    def forward(params: Any) -> jax.Array:
        return nnx.merge(graph, params, stats)(x)

    def loss(params: Any) -> jax.Array:
        return jnp.mean(forward(params) ** 2)

    compiled = [jax.jit(f).lower(params).compile() for f in (forward, jax.grad(loss))]
    return tuple(lambda f=f: jax.block_until_ready(f(params)) for f in compiled)  # type: ignore[return-value]


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


def _torch_vit(depth: int) -> Any:
    import timm

    return timm.create_model("vit_base_patch16_224", num_classes=0, depth=depth)


def _torch_lite() -> Any:
    """Its batch norms use their running statistics, as ours do."""
    import timm
    import torch

    return timm.create_model("efficientnet_lite0", num_classes=0).eval().to(memory_format=torch.channels_last)


def _torch_text(depth: int) -> Any:
    from transformers import CLIPTextConfig, CLIPTextModelWithProjection

    sizes: dict[str, Any] = {
        "hidden_size": 512,
        "intermediate_size": 2048,
        "projection_dim": 512,
        "num_attention_heads": 8,
    }
    return CLIPTextModelWithProjection(CLIPTextConfig(num_hidden_layers=depth, eos_token_id=END, **sizes))
