"""The runs of each table or figure of the paper, and the figures that the paper reports for them; and further tables.

A row is a set of config fields. The paper's figures are given by data set; where the paper shows a curve without
numbers there are none.
"""

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from rac_jax import config as configs

COLUMNS = ("all", "many", "medium", "few", "top5")  # the paper's groups

Paper = Mapping[str, Mapping[str, float]]  # data set -> column -> figure


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of a table: a run per seed."""

    name: str
    fields: Mapping[str, Any]
    paper: Paper = dataclasses.field(default_factory=dict)
    x: float = 0.0  # its position on the axis of the plot
    only: str = ""  # the only data set that it is run on; "" = any
    made: int = 0  # synthetic rows added to the memory, as a multiple of its own


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows, and the columns to show."""

    title: str
    rows: tuple[Row, ...]
    kind: str = "main"  # of its runs: main (training and evaluation) | nearest | runtime | edit
    columns: tuple[str, ...] = COLUMNS  # in %
    measures: tuple[str, ...] = ()  # further columns, in other units
    axis: str = ""  # of the plot; "" = one bar per row
    log: bool = False  # whether the axis is logarithmic
    across: bool = False  # the plot has a curve per row; the axis is that of the columns


def _groups(all_: float, many: float, medium: float, few: float) -> dict[str, float]:
    return {"all": all_, "many": many, "medium": medium, "few": few}


def _built(seconds: float, *groups: float) -> dict[str, float]:
    """The paper's construction time is that of E and the index together."""
    return _groups(*groups) | {"built in, s": seconds}


BASE, RETRIEVAL = {"model.voices": "base"}, {"model.voices": "text"}


def _described(role: str, name: str, weights: str = "", **options: int) -> dict[str, Any]:
    """Another model in a role, with none of the options that the config sets for its own."""
    fields = configs.default().model[role].to_dict() | {"name": name, "weights": weights, **options}
    return {f"model.{role}.{field}": value for field, value in fields.items()}


RESNET = BASE | _described("base", "resnet50", "resnet50:a1_in1k")
SCRATCH = RESNET | {"model.base.weights": "", "model.base.batch_norm": "update"}

MAIN = Table(
    "Methods",
    (
        Row("CE", BASE | {"loss.name": "ce"}, {
            "places_lt": _groups(37.16, 50.81, 33.83, 19.51), "inat2018": _groups(74.44, 81.53, 76.62, 69.82),
        }),
        Row("BalCE", BASE | {"loss.name": "balce"}, {
            "places_lt": _groups(43.67, 49.03, 45.72, 29.05), "inat2018": _groups(74.49, 72.39, 76.06, 73.05),
        }),
        Row("ResNet-50, CE", RESNET | {"loss.name": "ce"}),
        Row("ResNet-50, BalCE", RESNET | {"loss.name": "balce"}),
        Row("ResNet-50 from scratch, CE", SCRATCH | {"loss.name": "ce"}),
        Row("ResNet-50 from scratch, BalCE", SCRATCH | {"loss.name": "balce"}),
        Row("LDAM", BASE | {"loss.name": "ldam"}),
        Row("LDAM, the paper's sign", BASE | {"loss.name": "ldam_paper"}),
        Row("base, LACE", BASE, {
            "places_lt": _groups(44.05, 44.57, 45.06, 40.77), "inat2018": _groups(78.32, 74.41, 78.95, 78.55),
        }),
        Row("retrieval, LACE", RETRIEVAL, {
            "places_lt": _groups(39.58, 43.50, 41.99, 26.83), "inat2018": _groups(52.37, 50.10, 52.77, 52.45),
        }),
        Row("RAC", {}, {
            "places_lt": _groups(47.17, 48.69, 48.31, 41.76), "inat2018": _groups(80.24, 75.92, 80.48, 81.07),
        }),
        Row("RAC, 384 pixels", {"data.image_size": 384}, only="inat2018"),
    ),
)  # fmt: skip

ENCODERS = Table(
    "Nearest neighbour by encoder (exact, L2)",
    tuple(
        Row(name, {
            "model.encoder.name": model, "model.encoder.weights": weights, "memory.index": "flat",
            "memory.metric": "l2", **more,
        }, paper)
        for name, model, weights, more, paper in (
            ("EfficientNet-Lite0", "efficientnet_lite0", "efficientnet_lite0:imagenet", {}, {}),
            ("RN50", "resnet50", "resnet50:a1_in1k", {}, {
                "places_lt": _built(46, 20.34, 31.73, 16.28, 8.65), "inat2018": _built(314, 21.56, 26.8, 20.8, 21.15),
            }),
            ("RN152d", "resnet152d", "resnet152d:ra2_in1k", {}, {
                "places_lt": _built(127, 21.89, 33.52, 17.71, 10.03),
                "inat2018": _built(1070, 30.09, 38.95, 29.56, 28.45),
            }),
            ("ViT-B/32", "vit_b32", "vit_b32:augreg_in21k", {}, {
                "places_lt": _built(20, 27.92, 38.34, 24.82, 15.83), "inat2018": _built(155, 44.31, 48.14, 43.69, 44.1),
            }),
            ("ViT-B/32, 384 pixels", "vit_b32", "vit_b32:augreg_in21k", {"data.image_size": 384}, {
                "places_lt": _built(49, 29.28, 39.95, 26.12, 16.87),
            }),
            ("ViT-B/16", "vit_b16", "vit_b16:augreg_in21k", {}, {
                "places_lt": _built(53, 29.91, 39.97, 26.74, 18.65),
                "inat2018": _built(259, 53.89, 59.38, 53.92, 52.42),
            }),
            ("ViT-B/16, 384 pixels", "vit_b16", "vit_b16:augreg_in21k", {"data.image_size": 384}, {
                "places_lt": _built(195, 30.55, 40.79, 27.23, 19.25),
                "inat2018": _built(1334, 61.77, 66.15, 61.54, 60.92),
            }),
        )
    ),
    kind="nearest",
    columns=(*COLUMNS, "train: all"),
    measures=("built in, s", "indexed in, s", "ms a query"),
)  # fmt: skip


def _looked_up(
    all_: float, many: float, medium: float, few: float, top5: float, train: float, ms: float
) -> dict[str, float]:
    """The paper's query time is that of E and the search together; its training images are in the index they query."""
    return _groups(all_, many, medium, few) | {"top5": top5, "train: itself in": train, "ms with E": ms}


INDEX = Table(
    "Nearest neighbour by index",
    tuple(
        Row(f"{name}, {metric}", {"memory.index": index, "memory.metric": metric}, {"places_lt": paper})
        for name, index, metric, paper in (
            ("exact", "flat", "l2", _looked_up(29.91, 39.97, 26.74, 18.65, 53.81, 99.97, 1.12)),
            ("exact", "flat", "cosine", _looked_up(29.64, 39.84, 26.51, 18.03, 53.31, 99.96, 1.14)),
            ("HNSW", "hnsw", "l2", _looked_up(29.66, 39.89, 26.51, 18.03, 53.32, 99.79, 1.06)),
            ("HNSW", "hnsw", "cosine", _looked_up(29.37, 39.57, 26.26, 17.68, 52.83, 99.79, 1.07)),
        )
    ),
    kind="nearest",
    columns=(*COLUMNS, "train: all", "train: itself in"),
    measures=("indexed in, s", "ms a query", "ms with E"),
)


RANDOM_WORDS = _described("text", "random_words")

TEXT = Table(
    "Text encoders",
    (
        Row("CLIP", {}),
        Row("GloVe 50", _described("text", "glove", "glove:6b_50d", width=50)),
        Row("GloVe 300", _described("text", "glove", "glove:6b_300d")),
        Row("random words", RANDOM_WORDS),
        Row("BERT", _described("text", "bert", "bert")),
    ),
)

K = Table(
    "Neighbours k (text voice alone)",
    tuple(Row(f"k = {k}", RETRIEVAL | {"memory.k": k}, x=k) for k in (1, 2, 3, 5, 10, 20, 30, 50, 100)),
    axis="k",
    log=True,
)

_KEPT: tuple[tuple[str, Mapping[str, float]], ...] = (
    *((f"{share:g} of the rows", {"share": share}) for share in (0.05, 0.1, 0.25, 0.5)),
    ("all rows", {}),
    *((f"{number} rows a class", {"per_class": number}) for number in (1, 2, 5)),
    *((f"{share:g} of the classes, 5 rows each", {"classes": share, "per_class": 5}) for share in (0.2, 0.4)),
)

CONTENT = Table(
    "What the memory holds (text voice alone)",
    tuple(
        Row(name, RETRIEVAL | {f"memory.keep.{field}": value for field, value in keep.items()}) for name, keep in _KEPT
    ),
)

REWEIGHTING = Table(
    "Re-weighting",
    tuple(
        Row(name, {"loss.reweight": kind}, {"places_lt": places, "inat2018": inat})
        for name, kind, places, inat in (
            ("none", "none", _groups(47.75, 49.72, 49.34, 40.46), _groups(80.24, 75.92, 80.48, 81.07)),
            ("inverse sqrt", "inverse_sqrt", _groups(48.32, 47.12, 49.58, 47.65), _groups(79.56, 71.13, 80.02, 81.19)),
            ("inverse log", "inverse_log", _groups(48.29, 44.88, 51.35, 47.54), _groups(79.35, 67.17, 80.04, 81.67)),
        )
    ),
)

TAU = Table(
    "Strength τ of the logit adjustment",
    tuple(Row(f"τ = {tau:g}", {"loss.tau": tau}, x=tau) for tau in (0.0, 0.5, 1.0, 1.5, 2.0)),
    axis="τ",
)

FUSION = Table(
    "Scale of the fused logits", tuple(Row(scale, {"model.scale": scale}) for scale in ("paper", "sqrt", "learned"))
)

RATIO = "× no retrieval"


def _timed(seconds: float, rows: int = 0) -> Paper:
    return {"places_lt": {"s an epoch": seconds, RATIO: seconds / 23.6, "rows in memory": rows}}


RUNTIME = Table(
    "Seconds an epoch",
    (
        Row("no retrieval", BASE, _timed(23.6)),
        Row("random text", {"memory.k": 50, **RANDOM_WORDS}, _timed(28.3, rows=184_000)),
        Row("CLIP text", {"memory.k": 50}, _timed(44.3, rows=184_000)),
        Row("CLIP text with a large index", {"memory.k": 50}, _timed(47.0, rows=11_200_000), made=16),
    ),
    kind="runtime",
    columns=(),
    measures=("s an epoch", RATIO, "ms a step", "rows in memory"),
)

VOICES = Table(
    "Voices",
    tuple(
        Row(" + ".join(some), {"model.voices": "+".join(some)})
        for number in range(1, len(configs.VOICES) + 1)
        for some in itertools.combinations(configs.VOICES, number)
    ),
)

SHARES = (0.25, 0.5, 0.75, 1.0)  # of the rows
KEPT_CLASSES = 0.8
GAIN = "share of the gain, %"


def at(share: float) -> str:
    """The column for a memory with this share of the rows."""
    return f"memory at {100 * share:g} %"


EDIT = Table(
    "Rows added to the memory without training",
    tuple(Row(f"trained on {100 * share:g} %", {"data.keep_share": share}) for share in SHARES),
    kind="edit",
    columns=tuple(map(at, SHARES)),
    measures=(GAIN, "few"),
    axis="rows in the memory",
    across=True,
)

NEW = Table(
    "Classes added to the memory without training",
    (
        Row(f"trained on {100 * KEPT_CLASSES:g} % of the classes", {"data.keep_classes": KEPT_CLASSES}),
        Row("trained on all classes", {}),
    ),
    kind="edit",
    columns=("before", "all", "old classes", "new classes"),
    measures=(GAIN, "lost"),
)


def fitting(table: Table, config: ConfigDict) -> Table:
    """The table without rows that need voices that the config has not."""
    if table is not VOICES:
        return table
    known = set(configs.voices(config))
    rows = tuple(row for row in table.rows if set(row.fields["model.voices"].split("+")) <= known)
    return dataclasses.replace(table, rows=rows)


TABLES = {
    "main": MAIN,
    "retrieval": ENCODERS,
    "index": INDEX,
    "text": TEXT,
    "k": K,
    "content": CONTENT,
    "reweighting": REWEIGHTING,
    "tau": TAU,
    "runtime": RUNTIME,
    "fusion": FUSION,
    "voices": VOICES,
    "edit": EDIT,
    "new": NEW,
}
