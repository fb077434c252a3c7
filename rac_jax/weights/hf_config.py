"""Settings in a Hugging Face folder's config.json that do not show in the shapes of its tensors."""

import pathlib
from typing import Any

from flax import nnx

_ACTIVATIONS = {"gelu": "gelu", "quick_gelu": "quick_gelu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh"}


def check(model: nnx.Module, config: dict[str, Any], path: pathlib.Path) -> None:
    """Raise ValueError if the model has other heads or another activation than the file was trained with.

    Neither shows in a shape: the file would load and give wrong features.
    """
    blocks: Any = getattr(model, "blocks", None)
    attention = getattr(blocks[0], "attention", None) if blocks else None
    if attention is None or not config:
        return
    part = config.get("text_config" if hasattr(model, "token_embedding") else "vision_config") or config
    heads = part.get("num_attention_heads", attention.heads)
    if heads != attention.heads:
        raise ValueError(f"{path} was trained with {heads} heads, the model has heads={attention.heads}")
    ours = getattr(blocks[0], "activation", "gelu")
    theirs = _ACTIVATIONS.get(part.get("hidden_act", ""), ours)
    if theirs != ours:
        raise ValueError(f"{path} was trained with activation={theirs!r}, the model has {ours!r}")
