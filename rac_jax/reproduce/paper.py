"""The runs of each table or figure of the paper, and the figures that the paper reports for them.

The paper's figures are given by data set; where the paper shows a curve without numbers there are none.
"""

from collections.abc import Mapping

from rac_jax.reproduce.table import BASE, COLUMNS, RETRIEVAL, Paper, Row, Table, described


def _groups(all_: float, many: float, medium: float, few: float) -> dict[str, float]:
    return {"all": all_, "many": many, "medium": medium, "few": few}


def _built(seconds: float, *groups: float) -> dict[str, float]:
    """The paper's construction time is that of E and the index together."""
    return _groups(*groups) | {"built in, s": seconds}


RESNET = BASE | described("base", "resnet50", "resnet50:a1_in1k") | {"optim.frozen": ""}  # which is for another B
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
        Row("ResNet-50, CE", RESNET | {"loss.name": "ce"}, {"places_lt": {"all": 32.14}, "inat2018": {"all": 61.7}}),
        Row("ResNet-50, BalCE", RESNET | {"loss.name": "balce"}, {
            "places_lt": {"all": 38.31}, "inat2018": {"all": 69.8},
        }),
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
        Row("RAC, 384 pixels", {"data.image_size": 384}, {
            "inat2018": _groups(85.56, 82.91, 85.71, 86.06),
        }, only="inat2018"),
    ),
    reference="base, LACE",
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
            ("EfficientNet-Lite2", "efficientnet_lite2", "efficientnet_lite2:imagenet", {}, {}),
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


# The paper fills its large index with ImageNet-21k, here it is filled with synthetic rows: for times of an index up to
# as many, as far as memory allows; for the time of an epoch so many times the memory's own.
PAPERS_ROWS, LARGE = 11_200_000, 16

INDEX = Table(
    "Nearest neighbour by index",
    tuple(
        Row(f"{name}, {metric}", {"memory.index": index, "memory.metric": metric}, {"places_lt": paper}, up_to=up_to)
        for name, index, metric, paper, up_to in (
            ("exact", "flat", "l2", _looked_up(29.91, 39.97, 26.74, 18.65, 53.81, 99.97, 1.12), 0),
            ("exact", "flat", "cosine", _looked_up(29.64, 39.84, 26.51, 18.03, 53.31, 99.96, 1.14), 0),
            ("HNSW", "hnsw", "l2", _looked_up(29.66, 39.89, 26.51, 18.03, 53.32, 99.79, 1.06), 0),
            ("HNSW", "hnsw", "cosine", _looked_up(29.37, 39.57, 26.26, 17.68, 52.83, 99.79, 1.07), 0),
            ("large, exact", "flat", "l2", {"ms with E": 7.96, "rows": PAPERS_ROWS}, PAPERS_ROWS),
            ("large, HNSW", "hnsw", "l2", {"ms with E": 3.01, "rows": PAPERS_ROWS}, PAPERS_ROWS),
        )
    ),
    kind="nearest",
    columns=(*COLUMNS, "train: all", "train: itself in"),
    measures=("indexed in, s", "ms a query", "ms with E", "rows"),
)


RANDOM_WORDS = described("text", "random_words")

TEXT = Table(
    "Text encoders",
    (
        Row("CLIP", {}),
        Row("GloVe 50", described("text", "glove", "glove:6b_50d", width=50)),
        Row("GloVe 300", described("text", "glove", "glove:6b_300d")),
        Row("random words", RANDOM_WORDS),
        Row("BERT", described("text", "bert", "bert")),
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
    *((f"{number} row{'s' if number > 1 else ''} a class", {"per_class": number}) for number in (1, 2, 5)),
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
    "Fusion: scales, and the sum of voices that are trained by themselves",
    (
        *(Row(scale, {"model.scale": scale}) for scale in ("paper", "sqrt", "learned")),
        Row("sum", {"model.fusion": "sum"}),
    ),
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
        Row("CLIP text with a large index", {"memory.k": 50}, _timed(47.0, rows=PAPERS_ROWS), made=LARGE),
    ),
    kind="runtime",
    columns=(),
    measures=("s an epoch", RATIO, "ms a step", "rows in memory"),
)
