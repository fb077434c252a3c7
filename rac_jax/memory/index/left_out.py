"""Remove rows that must not be used from search results."""

from typing import Any

import numpy as np


def leave_out(rows: Any, similarities: Any, left_out: Any, k: int, xp: Any = np) -> tuple[Any, Any]:
    """The first k of the rows [B, K] found that are not `left_out` [B, K] bool, with their similarities: [B, k].

    The order stays. Where fewer than k are left the rest is −1. `xp` is numpy, or jax.numpy on the devices.
    """
    order = xp.argsort(left_out, axis=1, stable=True)[:, :k]
    rows = xp.take_along_axis(xp.where(left_out, -1, rows), order, axis=1)
    return rows, xp.take_along_axis(similarities, order, axis=1)
