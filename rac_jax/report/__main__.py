"""Write the page of a run: python -m rac_jax.report --workdir=DIR [--compare=DIR2,DIR3] [--split=test] [--out=FILE]

The page is one HTML file with the tables, plots, retrieval views and settings of an evaluated run, compared with other
runs. It opens from disk and needs no network.
"""

from pathlib import Path

from absl import app, flags

from rac_jax.report import page
from rac_jax.runtime import commands, files

WORKDIR = flags.DEFINE_string("workdir", None, "The run's folder.")
COMPARE = flags.DEFINE_list("compare", [], "Folders of runs to compare it with.")
SPLIT = flags.DEFINE_string("split", "test", "The split that the runs were evaluated on.")
OUT = flags.DEFINE_string("out", None, "The file; default <workdir>/report/<split>.html.")


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unknown arguments: {' '.join(argv[1:])}")
    if not WORKDIR.value:
        raise app.UsageError("name the run's folder: --workdir=DIR")
    workdir, split = Path(WORKDIR.value), SPLIT.value
    run, others = page.read(workdir, split), [page.read(Path(other), split) for other in COMPARE.value]
    out = Path(OUT.value) if OUT.value else workdir / "report" / f"{split}.html"
    files.write_text(out, page.make(run, others))
    print(f"wrote {out}")


if __name__ == "__main__":
    commands.run(main)
