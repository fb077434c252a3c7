"""Runs a table of the paper: python -m rac_jax.reproduce TABLE --config=FILE [--seeds=3] [--out=DIR]

TABLE is main, retrieval, index, text, k, content, reweighting, tau, runtime or fusion. Every row is run with every seed
on the config's data, with its budget, one run after another; those that are there already are not run again. Writes
DIR/TABLE.md and DIR/TABLE.png. retrieval, index and runtime measure times: leave the machine to them.
"""

import itertools
import sys
from pathlib import Path

from absl import app, flags
from ml_collections import config_flags
from tqdm import tqdm

from rac_jax.report import plots
from rac_jax.reproduce import results, runs
from rac_jax.reproduce.tables import TABLES, Table
from rac_jax.runtime import commands, files

CONFIG = config_flags.DEFINE_config_file("config", None, "A file of configs/, as configs/demo.py.")
SEEDS = flags.DEFINE_integer("seeds", 3, "How often each row is run.", lower_bound=1)
OUT = flags.DEFINE_string("out", None, "The folder; default runs/reproduce_<the config's name>.")
SPLIT = flags.DEFINE_string("split", "test", "The split that is evaluated; choose settings on val, not on test.")
ROWS = flags.DEFINE_list("rows", [], "Only these rows, by name.")


def main(argv: list[str]) -> None:
    if len(argv) != 2 or argv[1] not in TABLES or CONFIG.value is None:
        raise app.UsageError(f"a table and a --config are needed; the tables are {', '.join(TABLES)}\n\n{__doc__}")
    name, config = argv[1], CONFIG.value
    table, folder = TABLES[name], Path(OUT.value or f"runs/reproduce_{config.name}")
    given = [argument for argument in sys.argv[1:] if argument.startswith(("--config=", "--config."))]
    found = results.with_ratios(table, run(name, table, runs.Place(folder, given, config, SPLIT.value), SEEDS.value))
    text = results.markdown(table, found, config.data.name)
    files.write_text(folder / f"{name}.md", text)
    if any(not isinstance(row, str) for row in found.values()):
        plots.save(folder / f"{name}.png", plots.png(results.plot(table, found)))
    accuracy = f"accuracy on {SPLIT.value} in %, " if table.columns else ""
    print(f"{table.title}: {accuracy}mean ± deviation over {SEEDS.value} seeds\n\n{text}")
    print(f"wrote {folder / name}.md")


def run(name: str, table: Table, place: runs.Place, seeds: int) -> results.Results:
    """The results of every row, all rows with one seed before the next: a machine that gets slower slows all down.

    A row that cannot be run says why, and the others go on.
    """
    rows = [row for row in table.rows if not ROWS.value or row.name in ROWS.value]
    found: dict[str, list[runs.Result] | str] = {row.name: [] for row in rows}
    with tqdm(total=len(rows) * seeds, desc=name, unit="run") as bar:
        for seed, row in itertools.product(range(seeds), rows):
            bar.set_postfix_str(row.name)
            before = found[row.name]
            if not isinstance(before, str):
                try:
                    before.append(runs.result(place, table, row, seed))
                except runs.RowFailed as error:
                    tqdm.write(f"{row.name}: {error}", file=sys.stderr)
                    gist = str(error).partition(" (see")[0].partition(". ")[0]
                    found[row.name] = f"{results.NOT_RUN}: {gist}"
            bar.update()
    return found


if __name__ == "__main__":
    commands.run(main, CONFIG)
