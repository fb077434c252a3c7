"""Run a table of the paper: python -m rac_jax.reproduce TABLE --config=FILE [--seeds=3] [--out=DIR]

TABLE is main, retrieval, index, text, k, content, reweighting, tau, runtime, fusion, voices (every subset of the
config's voices), edit (the memory at 25, 50, 75 and 100 % of the rows without retraining, beside retraining at each),
new (a fifth of the classes added to the memory after training), or all. Each row is run with each seed on the config's
data, one run after another; runs that are complete are not repeated, and an interrupted one continues. Writes
DIR/TABLE.md, DIR/TABLE.png and DIR/index.html. A row that cannot be run shows the reason.
Several commands may work in one DIR: a run that another one has started is waited for. retrieval, index and runtime
measure times: run nothing else meanwhile.
"""

import itertools
import sys
from pathlib import Path

from absl import app, flags
from ml_collections import config_flags
from tqdm import tqdm

from rac_jax.report import plots
from rac_jax.reproduce import page, results, runs
from rac_jax.reproduce.tables import TABLES, Table, fitting
from rac_jax.runtime import commands, files

CONFIG = config_flags.DEFINE_config_file("config", None, "A file of configs/, as configs/demo.py.")
SEEDS = flags.DEFINE_integer("seeds", 3, "Number of runs of each row.", lower_bound=1)
OUT = flags.DEFINE_string("out", None, "The folder; default runs/reproduce_<the config's name>.")
SPLIT = flags.DEFINE_string("split", "test", "The split to evaluate; choose settings on val, not on test.")
ROWS = flags.DEFINE_list("rows", [], "Run only these rows, by name.")


def main(argv: list[str]) -> None:
    if len(argv) != 2 or argv[1] not in (*TABLES, "all") or CONFIG.value is None:
        raise app.UsageError(f"name a table and a --config; the tables are {', '.join(TABLES)}, or all\n\n{__doc__}")
    names = list(TABLES) if argv[1] == "all" else [argv[1]]
    _check_rows(names)
    config = CONFIG.value
    folder = Path(OUT.value or f"runs/reproduce_{config.name}")
    given = [argument for argument in sys.argv[1:] if argument.startswith(("--config=", "--config."))]
    experiment = runs.Experiment(folder, given, config, SPLIT.value)
    done: dict[str, results.Results] = {}
    with tqdm(names, desc="tables", unit="table", disable=len(names) == 1) as bar:
        for name in bar:
            bar.set_postfix_str(name)
            done[name] = _table(name, experiment)
            files.write_text(folder / "index.html", page.make(experiment, done, SEEDS.value))
    print(f"wrote {folder / 'index.html'}")


def _check_rows(names: list[str]) -> None:
    known = [row.name for name in names for row in TABLES[name].rows]
    unknown = [row for row in ROWS.value if row not in known]
    if unknown:
        listed = ", ".join(f'"{name}"' for name in dict.fromkeys(known))
        raise ValueError(f"--rows: there is no row {unknown[0]!r}; the rows are {listed}")


def _table(name: str, experiment: runs.Experiment) -> results.Results:
    """Run a table, write and print it."""
    table, folder = fitting(TABLES[name], experiment.config), experiment.folder
    dataset = experiment.config.data.name
    found = results.with_gains(table, results.with_ratios(table, run(name, table, experiment, SEEDS.value)))
    text = results.markdown(table, found, dataset)
    files.write_text(folder / f"{name}.md", text)
    if any(not isinstance(row, str) for row in found.values()):
        plots.save(folder / f"{name}.png", plots.png(results.plot(table, found)))
    accuracy = f"accuracy on {experiment.split} in %, " if table.columns else ""
    tqdm.write(f"{table.title}: {accuracy}mean ± standard deviation over {SEEDS.value} seeds\n\n{text}")
    tqdm.write(f"wrote {folder / name}.md")
    return found


def run(name: str, table: Table, experiment: runs.Experiment, seeds: int) -> results.Results:
    """The results of every row. All rows run with one seed before the next, so that a slower machine affects all alike.

    If a row cannot be run, its reason takes the place of its results. Rows that were not asked for are shown if they
    are complete.
    """
    asked = [row for row in table.rows if not ROWS.value or row.name in ROWS.value]
    found: dict[str, list[runs.Result] | str] = {row.name: [] for row in asked}
    for row in asked:
        if row.only not in ("", experiment.config.data.name):
            found[row.name] = f"{results.NOT_RUN}: for {row.only} only"
    with tqdm(total=len(asked) * seeds, desc=name, unit="run", leave=False) as bar:
        for seed, row in itertools.product(range(seeds), asked):
            bar.set_postfix_str(row.name)
            before = found[row.name]
            if not isinstance(before, str):
                try:
                    before.append(runs.result(experiment, table, row, seed))
                except runs.RowFailed as error:
                    tqdm.write(f"{row.name}: {error}", file=sys.stderr)
                    gist = str(error).partition(" (see")[0].partition(". ")[0]
                    found[row.name] = f"{results.NOT_RUN}: {gist}"
            bar.update()
    for row in table.rows:
        before_now = [runs.known(experiment, table, row, seed) for seed in range(seeds)] if row not in asked else []
        complete = [result for result in before_now if result is not None]
        if len(complete) == seeds:
            found[row.name] = complete
    return found


if __name__ == "__main__":
    commands.run(main, CONFIG)
