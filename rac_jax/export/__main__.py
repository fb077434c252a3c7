"""Copy a run to a folder that answers anywhere: python -m rac_jax.export --workdir=DIR --to=NEW [--with-encoder]

NEW holds a model card (README.md), the config, the classes, T's vocabulary, the newest checkpoint and the memory. It
can be moved, may be read-only, and needs neither the data nor the weights folder. Only E's weights are looked up by
name on the new machine, unless they are copied too, with --with-encoder.
"""

from collections.abc import Sequence
from pathlib import Path

from absl import app, flags

from rac_jax.export import folder
from rac_jax.runtime import commands

flags.DEFINE_string("workdir", None, "The run's folder.")
flags.DEFINE_string("to", None, "The new folder.")
flags.DEFINE_bool("with_encoder", False, "Copy E's weights too.")
flags.DEFINE_alias("with-encoder", "with_encoder")
flags.DEFINE_string("weights_dir", None, "Where weights lie; default as the run's config says.")
flags.DEFINE_integer("step", None, "The checkpoint; default the newest.")


def main(argv: Sequence[str]) -> None:
    given = flags.FLAGS
    if not given.workdir or not given.to or len(argv) > 1:
        raise app.UsageError(f"name a --workdir and a new folder --to\n\n{__doc__}")
    folder.write(
        Path(given.workdir),
        Path(given.to),
        with_encoder=given.with_encoder,
        step=given.step,
        weights_dir=given.weights_dir or "",
    )
    size = sum(path.stat().st_size for path in Path(given.to).rglob("*") if path.is_file())
    print(f"{given.to}: {size / 1e6:.1f} MB; python -m rac_jax.predict --workdir={given.to} IMAGE…")


if __name__ == "__main__":
    commands.run(main)
