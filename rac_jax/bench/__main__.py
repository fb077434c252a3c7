"""python -m rac_jax.bench NAME measures one part of the project."""

import sys
from collections.abc import Callable

from absl import flags

from rac_jax.bench import data

BENCHMARKS: dict[str, Callable[[], None]] = {"data": data.main}


def main() -> int:
    """Run the benchmark that the command line names."""
    name = sys.argv[1] if len(sys.argv) == 2 else ""
    if name not in BENCHMARKS:
        print(f"python -m rac_jax.bench NAME, where NAME is one of: {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    flags.FLAGS.mark_as_parsed()  # Grain's workers read absl flags
    BENCHMARKS[name]()
    return 0


if __name__ == "__main__":
    sys.exit(main())
