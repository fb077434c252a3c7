"""One page with all tables of an experiment."""

import html
from collections.abc import Mapping

from rac_jax.report import page
from rac_jax.reproduce import results
from rac_jax.reproduce.runs import Experiment
from rac_jax.reproduce.tables import TABLES, fitting


def make(experiment: Experiment, done: Mapping[str, results.Results], seeds: int) -> str:
    """The page, as HTML; `done` are the results by table. The plots are read from the experiment's folder."""
    title = f"The paper's tables on {experiment.config.data.name}"
    command = " ".join(experiment.flags)
    about = f"Config {experiment.config.name}, split {experiment.split}, {seeds} seeds: mean ± standard deviation."
    parts = [f"<h1>{html.escape(title)}</h1><p>{html.escape(about)}</p><pre>{html.escape(command)}</pre>"]
    for name, found in done.items():
        table = fitting(TABLES[name], experiment.config)
        picture = page.picture(experiment.folder / f"{name}.png", table.title)
        content = results.as_html(table, found, experiment.config.data.name) + picture
        parts.append(page.section(f"{table.title} ({name})", content))
    missing = [name for name in TABLES if name not in done]
    parts += [f"<p>Not run: {', '.join(missing)}.</p>"] if missing else []
    return page.document(title, parts)
