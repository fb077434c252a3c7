"""One page with all tables of an experiment."""

import html
import shlex
import urllib.parse
from collections.abc import Mapping

from rac_jax.report import page
from rac_jax.reproduce import rendering, results
from rac_jax.reproduce.experiment import Experiment
from rac_jax.reproduce.table import Table
from rac_jax.reproduce.tables import TABLES

Done = Mapping[str, tuple[Table, results.Results]]  # tables by name, and their results


def make(experiment: Experiment, done: Done, seeds: int) -> str:
    """The page, as HTML. The plots are read from the experiment's folder."""
    title = f"The paper's tables on {experiment.config.data.name}"
    command = f"python -m rac_jax.reproduce TABLE {shlex.join(experiment.flags)} --seeds={seeds}"
    if experiment.split != "test":
        command += f" --split={experiment.split}"
    count = rendering.seeds(seeds)
    about = f"Config {experiment.config.name}, split {experiment.split}, {count}: mean ± standard deviation."
    parts = [f"<h1>{html.escape(title)}</h1><p>{html.escape(about)}</p><pre>{html.escape(command)}</pre>"]
    parts.append(_contents({name: table for name, (table, _) in done.items()}))
    for name, (table, found) in done.items():
        pictures = {f"{name}.png": table.title, f"{name}_curves.png": f"{table.title}: learning curves"}
        picture = "".join(page.picture(experiment.folder / file, title) for file, title in pictures.items())
        content = rendering.as_html(results.blocks(table, found, experiment.config.data.name)) + picture
        parts.append(f'<a id="{html.escape(name)}"></a>' + page.section(f"{table.title} ({name})", content))
    missing = [name for name in TABLES if name not in done]
    parts += [f"<p>Not run: {', '.join(missing)}.</p>"] if missing else []
    others = sorted(path.name for path in experiment.folder.glob("content_*.md") if path.stem not in done)
    links = ", ".join(f'<a href="{urllib.parse.quote(name)}">{html.escape(name)}</a>' for name in others)
    parts += [f"<p>With other memories: {links}.</p>"] if others else []
    return page.document(title, parts)


def _contents(tables: Mapping[str, Table]) -> str:
    """Links to the tables of the page, if there are several."""
    links = (f'<a href="#{html.escape(name)}">{html.escape(table.title)}</a>' for name, table in tables.items())
    return f"<p>{' · '.join(links)}</p>" if len(tables) > 1 else ""
