"""Run a benchmark: python -m rac_jax.bench NAME [--help]"""

import sys
from collections.abc import Callable, Sequence

from absl import flags

import rac_jax.runtime.commands  # noqa: F401  # sets what jax reads from the environment
from rac_jax.bench import beside_torch, data, memory, serve, step

BENCHMARKS: dict[str, Callable[[Sequence[str]], None]] = {
    "data": data.main,
    "memory": memory.main,
    "serve": serve.main,
    "step": step.main,
    "torch": beside_torch.main,
}


def main() -> int:
    """Run the benchmark that the command line names."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in BENCHMARKS:
        print(f"python -m rac_jax.bench NAME, where NAME is one of: {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    flags.FLAGS.mark_as_parsed()  # Grain's workers read absl flags
    BENCHMARKS[name](sys.argv[2:])
    return 0


if __name__ == "__main__":
    sys.exit(main())
