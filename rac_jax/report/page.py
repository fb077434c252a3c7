"""The report page of a run: one HTML file with tables, pictures and the config, which opens without a network."""

import base64
import dataclasses
import html
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rac_jax import config as configs
from rac_jax.report.tables import columns_of, coverage_rows

PLOTS = {
    "by_class": "Accuracy by class",
    "by_frequency": "Accuracy by class frequency",
    "confusion": "Confusion",
    "calibration": "Calibration",
}
VIEWS = {
    "rescued": "Rescued by the memory: right, where the base voice alone is wrong",
    "worst": "Worst: the true class is found least probable",
    "random": "Random images",
}
STYLE = """
:root { color-scheme: light dark; --line: #8885; --ink: light-dark(#222, #ddd); --pale: light-dark(#f4f4f2, #242424) }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: light-dark(#fff, #181818);
       max-width: 62rem; margin: 0 auto; padding: 1rem }
h1 { font-size: 1.5rem }
h2 { font-size: 1.15rem; margin-top: 2.2rem; border-top: 1px solid var(--line); padding-top: 1rem }
.wide { overflow-x: auto } table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .7rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap }
th:first-child, td:first-child, .left td { text-align: left } .left td { white-space: normal; overflow-wrap: anywhere }
td.reason { text-align: left; white-space: normal; overflow-wrap: anywhere; max-width: 30rem }
img { max-width: 100%; height: auto; background: #fff; border-radius: 4px; display: block; margin: .6rem 0 }
.view { overflow-x: auto } .view img { min-width: 44rem; max-width: 100% }
@media (max-width: 40rem) { th, td { padding: .25rem .4rem; font-size: .85rem } }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr)); gap: 0 1rem }
pre { background: var(--pale); padding: .8rem; overflow-x: auto; font-size: .85rem } summary { cursor: pointer }
"""


@dataclasses.dataclass(frozen=True)
class Run:
    """What an evaluated run left in its folder."""

    workdir: Path
    config: dict[str, Any]
    result: dict[str, Any]  # eval/<split>.json

    @property
    def title(self) -> str:
        return f"{self.config['name']} ({self.workdir})"


def read(workdir: Path, split: str) -> Run:
    """A run that was evaluated on a split."""
    result = workdir / "eval" / f"{split}.json"
    config = _read_json(workdir / "config.json", split, ("name",))
    return Run(workdir, config, _read_json(result, split, ("images", "split", "classes", "step", "voices")))


def _read_json(path: Path, split: str, needed: Sequence[str]) -> dict[str, Any]:
    """A JSON file of a run with the needed fields."""
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: there is no run here that was evaluated on {split}")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}); evaluate the run again") from error
    missing = [name for name in needed if not isinstance(content, dict) or name not in content]
    if missing:
        raise ValueError(f"{path} is damaged (it has no {missing[0]!r}); evaluate the run again")
    return content


def make(run: Run, others: Sequence[Run]) -> str:
    """The page, as HTML."""
    result = run.result
    summary = f"{result['images']} images of {result['split']}, {result['classes']} classes, step {result['step']}"
    parts = [
        f"<h1>{html.escape(run.config['name'])}</h1><p>{html.escape(str(run.workdir))}: {html.escape(summary)}</p>",
        section("Accuracy, %", _accuracies([run, *others])),
        section("Sets of labels: images that are covered, and labels in a set", _coverage(run)),
        _plots(run),
        *(section(title, _views(run, reason)) for reason, title in VIEWS.items()),
    ]
    parts += [section(f"Settings that differ from {other.title}", _differences(run, other)) for other in others]
    settings = html.escape(json.dumps(run.config, indent=2))
    parts.append(section("Settings", f"<details><summary>all of them</summary><pre>{settings}</pre></details>"))
    return document(run.config["name"], parts)


def document(title: str, parts: Sequence[str]) -> str:
    """A page with this title and these parts, which are HTML."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head>\n<body>\n"
        + "\n".join(filter(None, parts))
        + "\n</body></html>\n"
    )


def section(title: str, content: str) -> str:
    """A heading and its content, which is HTML; nothing if there is no content."""
    return f"<h2>{html.escape(title)}</h2>\n{content}" if content else ""


def _accuracies(runs: Sequence[Run]) -> str:
    """Runs × voices × groups; the best of each column is bold where runs are compared."""
    rows = [
        (name, voice, values)
        for name, run in zip(_names(runs), runs, strict=True)
        for voice, values in run.result["voices"].items()
    ]
    shown = columns_of(values for _, _, values in rows)
    best = {name: max((values.get(name, 0.0) for _, _, values in rows), default=0.0) for name in shown}
    body = []
    for run, voice, values in rows:
        name = f"{run}: {voice}" if len(runs) > 1 else voice
        cells = (_cell(values, column, best[column] if len(runs) > 1 else None) for column in shown)
        body.append(f"<tr><td>{html.escape(name)}</td>{''.join(cells)}</tr>")
    head = "".join(f"<th>{name}</th>" for name in ("voice", *shown))
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(body)}</table></div>'


def _coverage(run: Run) -> str:
    if "coverage" not in run.result:
        return ""
    head, *rows = coverage_rows(run.result["coverage"])
    lines = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="wide"><table><tr>{"".join(f"<th>{name}</th>" for name in head)}</tr>{body}</table></div>'


def _names(runs: Sequence[Run]) -> list[str]:
    """The configs' names or, where two share one, what differs in the paths of their folders."""
    names = [run.config["name"] for run in runs]
    if len(set(names)) == len(names):
        return names
    folders = [run.workdir.absolute() for run in runs]
    common = os.path.commonpath(folders)
    return [str(folder.relative_to(common)) for folder in folders]


def _cell(values: Mapping[str, float], column: str, best: float | None) -> str:
    if column not in values:
        return "<td>–</td>"
    text = f"{100 * values[column]:.2f}"
    return f"<td><b>{text}</b></td>" if values[column] == best else f"<td>{text}</td>"


def _plots(run: Run) -> str:
    pictures = (picture(_folder(run) / f"{name}.png", title) for name, title in PLOTS.items())
    return f'<h2>By class</h2>\n<div class="two">{"".join(pictures)}</div>'


def _views(run: Run, reason: str) -> str:
    paths = sorted(_folder(run).glob(f"{reason}_*.png"), key=lambda path: int(path.stem.rpartition("_")[2]))
    shown = (picture(path, f"{reason} {number + 1}") for number, path in enumerate(paths))
    return "".join(f'<div class="view">{view}</div>' for view in shown)


def _folder(run: Run) -> Path:
    return run.workdir / "report" / run.result["split"]


def picture(path: Path, title: str) -> str:
    """A PNG inside the page; nothing if there is no such file."""
    if not path.exists():
        return ""
    encoded = base64.b64encode(path.read_bytes()).decode()
    return f'<img alt="{html.escape(title)}" src="data:image/png;base64,{encoded}">'


def _differences(run: Run, other: Run) -> str:
    rows = [
        f"<tr><td>{html.escape(name)}</td><td>{html.escape(str(mine))}</td><td>{html.escape(str(theirs))}</td></tr>"
        for name, (mine, theirs) in configs.difference(run.config, other.config).items()
    ]
    head = f"<tr><th>field</th><th>here</th><th>{html.escape(other.config['name'])}</th></tr>"
    return f'<div class="wide"><table class="left">{head}{"".join(rows)}</table></div>' if rows else "<p>none</p>"
