"""Where B is cut: the output of its first, frozen blocks is computed once for each view of an image."""

import re
from typing import Any

import jax
from flax import nnx
from ml_collections import ConfigDict

from rac_jax.config import ConfigError


def of(config: ConfigDict, base: Any) -> int:
    """How many of B's first blocks are frozen by config.optim.frozen; 0 if a step sees images (config.train.views)."""
    if not config.train.views:
        return 0
    name = config.model.base.name
    if not hasattr(base, "above"):
        raise ConfigError(f"config.train.views is {config.train.views}; {name} cannot be cut: it must be 0")
    trained = _trained(config.optim.frozen, base)
    blocks = [i for i in range(len(base.blocks)) if f"blocks.{i}" in trained]
    cut = 0 if trained & set(base.entrance) else min(blocks, default=len(base.blocks))
    if not cut:
        wanted = rf"base\.({'|'.join(base.entrance)}|blocks\.[0-5]\.)"
        raise ConfigError(
            f"config.train.views is {config.train.views}, but config.optim.frozen={config.optim.frozen!r} does not "
            f"freeze {name} up to a block; {wanted} does"
        )
    return cut


def _trained(pattern: str, base: Any) -> set[str]:
    """The parts of B with a parameter that is trained, as "stem" or "blocks.3"."""
    leaves = jax.tree.leaves_with_path(nnx.to_pure_dict(nnx.state(base, nnx.Param)))
    paths = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in leaves]
    moving = [path for path in paths if not (pattern and re.match(pattern, f"base.{path}"))]
    return {".".join(path.split(".")[: 2 if path.startswith("blocks.") else 1]) for path in moving}
