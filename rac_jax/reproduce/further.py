"""Tables that the paper does not have."""

import itertools

from rac_jax import config as configs
from rac_jax.reproduce.table import FITTING, MINUTES, OF_E, RETRIEVAL, Row, Table, described

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
MEMORY_AT = "memory at "  # begins the name of a column


def at(share: float) -> str:
    """The column for a memory with this share of the rows."""
    return f"{MEMORY_AT}{100 * share:g} %"


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


def _imbalance(only: str, images: int, more: dict[str, int], imbalances: tuple[int, ...]) -> list[Row]:
    """The same classes and about the same number of images at each imbalance, with and without the memory."""
    rows = []
    for imbalance in imbalances:
        fields = {"data.imbalance": float(imbalance), "data.images": images, **more}
        alone = f"{only}, imbalance {imbalance}: classifier alone"
        rows.append(Row(alone, fields, only=only, alone=True))
        rows.append(Row(f"{only}, imbalance {imbalance}: with the memory", fields, only=only, against=alone))
    return rows


# CIFAR-100's 50 most frequent classes have 51 images and more in the long-tailed set, so that all four imbalances can
# be drawn from it with 2,500 images. Of groceries, the rarest class has 30 photos and the most frequent one 75.
IMBALANCE = Table(
    "Imbalance, with the same number of images",
    (
        *_imbalance("cifar100_lt", 2500, {"data.frequent": 50}, (1, 10, 50, 100)),
        *_imbalance("groceries", 297, {}, (1, 4, 15)),
    ),
)

NOISE_SHARES = (0.1, 0.3)
RELIABLE = {"model.vote.reliability": 10}


def _noise() -> list[Row]:
    rows = [Row("clean: classifier alone", {}, alone=True), Row("clean", {}), Row("clean, reliability", RELIABLE)]
    for share, where in itertools.product(NOISE_SHARES, ("memory", "training", "both")):
        fields = {"data.label_noise": share, "data.noise_in": where}
        name = f"{100 * share:g} % wrong in {where}"
        if where != "memory":
            rows.append(Row(f"{name}: classifier alone", fields, alone=True, against="clean: classifier alone"))
        rows.append(Row(name, fields))
        rows.append(Row(f"{name}, reliability", fields | RELIABLE, against=name))
    return rows


NOISE = Table("Wrong labels in the memory, in training, and in both", tuple(_noise()), reference="clean")

CAPTION = "a photo of a {name}, a kind of {group}"
LONG = "a photo of a {name}, which belongs to the {group} as {others} do"
GENTLY = {"optim.text_learning_rate_factor": 0.2}  # how pretrained weights of T are trained
READERS = {
    "CLIP, 77 tokens": {},
    "MiniLM, 256 tokens": described("text", "minilm", "minilm") | GENTLY,
    "BERT, 256 tokens": described("text", "bert", "bert") | GENTLY,
}

TEXTS = Table(
    "Longer texts (text voice alone)",
    tuple(
        Row(f"{reader}: {texts}", RETRIEVAL | fields | {"data.caption": template})
        for reader, fields in READERS.items()
        for texts, template in (("names", ""), ("with the group", CAPTION), ("and its other classes", LONG))
    ),
    measures=(FITTING,),
)

BY_MINUTES = Table(
    "Accuracy and minutes",
    (),  # a row for each variant of the config file
    measures=(MINUTES, OF_E),
    by=MINUTES,
)
