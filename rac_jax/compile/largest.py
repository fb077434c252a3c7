"""The largest batch of a config that fits on a target, found with few compilations."""

import sys
from collections.abc import Callable
from typing import Any

from ml_collections import ConfigDict

from rac_jax.compile import estimate, programs
from rac_jax.compile.devices import GB
from rac_jax.compile.estimate import Compiled, TooLarge
from rac_jax.compile.targets import Target
from rac_jax.config import ConfigError

MOST = 5  # compilations that succeed
NEAR = 0.03  # relative distance between a batch that fits and one that does not


def largest_batch(
    config: ConfigDict, target: Target, devices: list[Any], sizes: tuple[int, int], known: dict[str, Compiled]
) -> str:
    """A line that names the batch. `known` are the programs at the config's own batch size that could be compiled."""
    if not target.device.memory:
        raise ConfigError(f"--largest-batch has no memory to fill on {target}")
    spare = estimate.beside_training(config, known)

    def need(batch: int) -> int | None:
        """Bytes a device, or None if the compiler gives up."""
        print(f"compiling train with batch {batch} for {target}", file=sys.stderr, flush=True)
        changed = config.copy_and_resolve_references()
        changed.train.batch_size = batch
        try:
            found = estimate.compile_program(programs.of_run(changed, devices, *sizes)["train"], target)
        except TooLarge:
            return None
        return found.arguments + found.temporaries + found.code + spare

    train = known.get("train")
    first = train.arguments + train.temporaries + train.code + spare if train else None
    batch, used = search(
        need, start=config.train.batch_size, used=first, limit=estimate.usable(target.device), multiple=target.count
    )
    if not batch:
        return f"largest batch: none fits on {target}; raise config.train.accumulate or config.mesh.fsdp"
    return f"largest batch: {batch} ({used / GB:.1f} of {estimate.usable(target.device) / GB:.1f} GB a device)"


def search(
    need: Callable[[int], int | None], *, start: int, used: int | None, limit: int, multiple: int
) -> tuple[int, int]:
    """The largest multiple that fits and its bytes; (0, 0) if none does. Memory grows about linearly with the batch.

    `need` and `used`, the need of the batch `start`, are None where the compiler gave up: that batch is too large.
    """
    points = {0: 0}  # nothing is known of batch 0 yet: the first guess is a cautious one
    if used is not None:
        points[start] = used
    fits, too_large = (start, 0) if used is not None and used <= limit else (0, start)
    answers = 0
    while answers < MOST:
        guess = _guess(points, limit, fits, too_large, multiple)
        if guess in points or guess <= fits or (too_large and guess >= too_large):
            break
        found = need(guess)
        if found is not None:
            answers += 1
            points.pop(0, None)
            points[guess] = found
        if found is not None and found <= limit:
            fits = guess
        else:
            too_large = guess
        if too_large and too_large - fits <= max(multiple, NEAR * fits):
            break
    return (fits, points[fits]) if fits else (0, 0)


def _guess(points: dict[int, int], limit: int, fits: int, too_large: int, multiple: int) -> int:
    """Where a line through the two points nearest to the limit meets it, between what fits and what does not.

    With fewer points, the middle between these two.
    """
    if len(points) < 2:
        return max(multiple, (fits + too_large) // 2 // multiple * multiple)
    (low, a), (high, b) = sorted(sorted(points.items(), key=lambda p: abs(limit - p[1]))[:2])
    slope = (b - a) / (high - low)
    guess = int(low + 0.98 * (limit - a) / slope) if slope > 0 else 2 * high
    if too_large and not fits < guess < too_large:
        guess = (fits + too_large) // 2
    return max(multiple, guess // multiple * multiple)
