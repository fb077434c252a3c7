"""Run a table of the paper: python -m rac_jax.reproduce TABLE --config=FILE [--seeds=3] [--out=DIR]

TABLE is one of the paper's (main, retrieval, index, text, k, content, reweighting, tau, runtime, fusion), one of these,
or all:

  voices     every subset of the config's voices
  edit       the memory at 25, 50, 75 and 100 % of the rows without retraining, beside retraining at each
  new        a fifth of the classes added to the memory after training
  texts      names and longer texts of classes, read by CLIP's window of 77 tokens and by larger ones
  imbalance  the same number of images, from balanced to long-tailed, with and without the memory
  noise      wrong labels in the memory, in training and in both; rows weighted by their reliability
  minutes    the variants of the config file (--variants=…), with their time on this machine

`content --memory=MEMORY` uses a memory of other images; its files are called content_<name of MEMORY>. `index` fills
its large indexes up to the paper's 11.2 million rows, or as far as half of the free memory holds them; --large-rows=N
changes the number. --without=NAME,… leaves out rows, or tables of all, that take too long here; a name with a comma
stands in quotes: --without='minutes,"ResNet-50 from scratch, CE"'.

Each row is run with each seed on the config's data, one run after another; runs that are complete are not repeated, and
an interrupted one continues. Writes DIR/TABLE.md, DIR/TABLE.png, DIR/TABLE_curves.png (with --config.eval.every=N) and
DIR/index.html, which also shows the tables of earlier commands in DIR. A row that cannot be run shows the reason.
Several commands may work in one DIR: a run that another one has started is waited for. retrieval, index, runtime and
minutes measure times: run nothing else meanwhile.
"""

import itertools
import sys
from pathlib import Path

from absl import app, flags
from ml_collections import config_flags
from tqdm import tqdm

from rac_jax import data
from rac_jax.report import plots
from rac_jax.reproduce import curves, figures, page, paper, rendering, results, runs
from rac_jax.reproduce.experiment import Experiment, folder_name, given_flags
from rac_jax.reproduce.table import Row, Table
from rac_jax.reproduce.tables import TABLES, asked_for, by_variant, external, fitting, with_large
from rac_jax.runtime import commands, files

CONFIG = config_flags.DEFINE_config_file("config", None, "A file of configs/, as configs/demo.py.")
SEEDS = flags.DEFINE_integer("seeds", 3, "Number of runs of each row.", lower_bound=1)
OUT = flags.DEFINE_string("out", None, "The folder; default runs/reproduce_<the config's name>.")
SPLIT = flags.DEFINE_string("split", "test", "The split to evaluate; choose settings on val, not on test.")
MEMORY = flags.DEFINE_string("memory", None, "content: a memory of the same encoder without any training image.")
VARIANTS = flags.DEFINE_list("variants", [], "minutes: only these variants of the config file.")
ROWS = flags.DEFINE_list("rows", [], "Run only these rows, by name.")
WITHOUT = flags.DEFINE_list("without", [], "Do not run these rows or, with all, these tables, by name.")
LARGE_ROWS = flags.DEFINE_integer(
    "large-rows",
    paper.PAPERS_ROWS,
    "index: rows of its large indexes, if half of the free memory holds them.",
    lower_bound=1,
)


def main(argv: list[str]) -> None:
    if len(argv) != 2 or argv[1] not in (*TABLES, "all") or CONFIG.value is None:
        raise app.UsageError(f"name a table and a --config; the tables are {', '.join(TABLES)}, or all\n\n{__doc__}")
    names = [name for name in TABLES if name not in WITHOUT.value] if argv[1] == "all" else [argv[1]]
    if not names:
        raise app.UsageError("--without names every table")
    config = CONFIG.value
    folder = Path(OUT.value or f"runs/reproduce_{config.name}")
    experiment = Experiment(folder, given_flags(sys.argv[1:]), config, SPLIT.value)
    chosen = {_file(name): table for name in names if (table := _table(name, experiment)).rows}
    if not chosen:
        raise ValueError(f"the table {names[0]} has no rows for the data set {config.data.name} and these voices")
    _check_rows(list(chosen.values()))
    done: dict[str, tuple[Table, results.Results]] = {}
    with tqdm(chosen, desc="tables", unit="table", disable=len(names) == 1) as bar:
        for name in bar:
            bar.set_postfix_str(name)
            done[name] = chosen[name], _results(name, chosen[name], experiment)
            _write_page(experiment, done)
    print(f"wrote {folder / 'index.html'}")


def _table(name: str, experiment: Experiment, *, asked: bool = True) -> Table:
    """A table with the rows that fit the config and, if it was asked for, its flags."""
    table = with_large(fitting(TABLES[name], experiment.config), LARGE_ROWS.value)
    if name == "minutes":
        return by_variant(table, experiment, VARIANTS.value if asked else [])
    if name == "content" and MEMORY.value and asked:
        datasets = [data.load(experiment.run_config(table.rows[0], seed)) for seed in range(SEEDS.value)]
        return external(table, Path(MEMORY.value), datasets)
    return table


def _file(name: str) -> str:
    """The name of a table's files: another one if its memory is."""
    if name == "content" and MEMORY.value:
        return folder_name({name: Path(MEMORY.value).resolve().name})
    return name


def _write_page(experiment: Experiment, done: page.Done) -> None:
    """Write index.html with these tables and all others that were run in the folder.

    Another command may work in the folder: whichever writes last finds the tables of both.
    """
    with runs.locked(experiment.folder):
        others = _earlier([name for name in TABLES if name not in done], experiment)
        text = page.make(experiment, _in_order({**others, **done}), SEEDS.value)
        files.write_text(experiment.folder / "index.html", text)


def _earlier(names: list[str], experiment: Experiment) -> dict[str, tuple[Table, results.Results]]:
    """Of these tables, those that earlier commands ran in the same folder, entirely or in part."""
    done: dict[str, tuple[Table, results.Results]] = {}
    for name in names:
        table = _table(name, experiment, asked=False)
        partly = (experiment.folder / f"{name}.md").exists()
        if found := runs.earlier(experiment, table, SEEDS.value, partly=partly):
            done[name] = table, results.with_gains(table, results.with_ratios(table, found))
    return done


def _in_order(done: page.Done) -> page.Done:
    """The tables in the order of TABLES."""
    places = {name: place for place, name in enumerate(TABLES)}
    return dict(sorted(done.items(), key=lambda item: places.get(item[0], places["content"])))


def _check_rows(tables: list[Table]) -> None:
    known = [row.name for table in tables for row in table.rows]
    for flag, unknown in (("rows", {*ROWS.value} - {*known}), ("without", {*WITHOUT.value} - {*known, *TABLES})):
        if unknown:
            listed = ", ".join(f'"{name}"' for name in dict.fromkeys(known))
            raise ValueError(f"--{flag}: there is no row {min(unknown)!r}; the rows are {listed}")


def _results(name: str, table: Table, experiment: Experiment) -> results.Results:
    """Run a table, write and print it."""
    folder, dataset = experiment.folder, experiment.config.data.name
    found = results.with_gains(table, results.with_ratios(table, run(name, table, experiment, SEEDS.value)))
    text = rendering.markdown(results.blocks(table, found, dataset))
    files.write_text(folder / f"{name}.md", text)
    complete = [row for row in table.rows if not isinstance(found.get(row.name, ""), str)]
    if complete:
        plots.save(folder / f"{name}.png", plots.png(figures.plot(table, found)))
    if table.kind == "main" and (learned := curves.plot(_curves(table, complete, experiment), table.title)):
        plots.save(folder / f"{name}_curves.png", plots.png(learned))
    accuracy = f"accuracy on {experiment.split} in %, " if table.columns else ""
    tqdm.write(f"{table.title}: {accuracy}mean ± standard deviation over {rendering.seeds(SEEDS.value)}\n\n{text}")
    tqdm.write(f"wrote {folder / name}.md")
    return found


def _curves(table: Table, rows: list[Row], experiment: Experiment) -> dict[str, list[curves.Curve]]:
    """The learning curves of each row, one per seed."""
    return {
        row.name: [curves.read(experiment.of(row).workdir(table, row, seed), row.voice) for seed in range(SEEDS.value)]
        for row in rows
    }


def run(name: str, table: Table, experiment: Experiment, seeds: int) -> results.Results:
    """The results of every row. All rows run with one seed before the next, so that a slower machine affects all alike.

    If a row cannot be run, its reason takes the place of its results. Rows that were not asked for are shown if they
    are complete or were found to be impossible.
    """
    asked = asked_for(table, ROWS.value, [name for name in WITHOUT.value if name not in TABLES])
    found: dict[str, list[runs.Result] | str] = {row.name: [] for row in asked}
    for row in asked:
        if row.only not in ("", experiment.config.data.name):
            found[row.name] = runs.not_run(f"for {row.only} only")
    with tqdm(total=len(asked) * seeds, desc=name, unit="run", leave=False) as bar:
        for seed, row in itertools.product(range(seeds), asked):
            bar.set_postfix_str(row.name)
            before = found[row.name]
            if not isinstance(before, str):
                try:
                    before.append(runs.result(experiment, table, row, seed))
                except runs.RowFailed as error:
                    tqdm.write(f"{row.name}: {error}", file=sys.stderr)
                    found[row.name] = runs.not_run(str(error))
            bar.update()
    for row in table.rows:
        if row not in asked:
            known = runs.complete(experiment, table, row, seeds) or runs.failure(experiment, table, row, seeds)
            found |= {row.name: known} if known else {}
    return found


if __name__ == "__main__":
    commands.run(main, CONFIG)
