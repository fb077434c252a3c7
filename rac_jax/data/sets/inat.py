"""iNaturalist 2018: 8,142 species, 437,513 training and 24,426 test images.

The labels of the competition's test images are not public. The paper and others report results on its validation
split, which is "test" here; there is no validation split to select on.
"""

import json
from collections.abc import Callable
from pathlib import Path

from rac_jax.data import files
from rac_jax.data.dataset import Dataset
from rac_jax.data.missing import find_list
from rac_jax.data.text_files import read_text

CLASSES = 8_142
IMAGES = {"train": 437_513, "test": 24_426}
LISTED_AS = {
    "train": ["train2018.json", "iNaturalist18_train.txt"],
    "test": ["val2018.json", "iNaturalist18_val.txt"],
}
LEVELS = ("species", "genus", "family", "order", "class", "phylum", "kingdom", "supercategory")

SHA256 = {
    "categories.json": "9c7adca5cafad83bc015e21dc773580769ef641543c412708a08fd81ea99ceb0",
    "iNaturalist18_val.txt": "efaeff65f80641b60864470e6f255aa69453406ef5717eec8c6681748f3a61f3",
}

HOW_TO_GET = """\
  lists:  train2018.json, val2018.json and categories.json, from the 2018 folder of
          github.com/visipedia/inat_comp (each is a .tar.gz there; categories.json has the species'
          names), or iNaturalist18_train.txt and iNaturalist18_val.txt in place of the first two.
          Put them into the root, or name their folder with --config.data.lists.
  images: train_val2018.tar.gz (120 GB) from the same page. The root is the folder that holds
          train_val2018/."""


def load(root: str, lists: str = "", text_levels: str = "species") -> Dataset:
    """`text_levels` are the names that make up a class's text, as in "genus family order"."""
    named_in = find_list("iNaturalist 2018", root, lists, ["categories.json"], HOW_TO_GET)
    categories = read_categories(named_in)
    sources = {
        name: find_list("iNaturalist 2018", root, lists, listed_as, HOW_TO_GET) for name, listed_as in LISTED_AS.items()
    }
    splits = {}
    for name, source in sources.items():
        part = read_json(source) if source.suffix == ".json" else files.read_list(source, CLASSES)
        files.check_count(part, IMAGES[name])
        as_listed: list[Callable[[str, int], str]] = [lambda path, _: path]
        splits[name] = files.split_in_any_layout("iNaturalist 2018", name, Path(root), part, as_listed, HOW_TO_GET)
    class_names = tuple(category["name"] for category in categories)
    files.check_every_class(splits["train"], class_names, str(sources["train"]))
    return Dataset("inat2018", class_names, class_texts(categories, text_levels), splits)


def read_categories(source: Path) -> list[dict[str, str]]:
    """The species by label, each with its taxonomy."""
    try:
        by_label = {int(category["id"]): category for category in json.loads(read_text(source))}
    except (ValueError, TypeError, LookupError) as error:
        raise ValueError(f"{source}: not a list of categories in JSON ({error!r})") from error
    if sorted(by_label) != list(range(CLASSES)):
        raise ValueError(f"{source}: expected the ids 0 to {CLASSES - 1}, found {len(by_label)} ids")
    return [by_label[label] for label in range(CLASSES)]


def class_texts(categories: list[dict[str, str]], levels: str) -> tuple[str, ...]:
    """For "species": Hermodice carunculata; for "genus family": Hermodice Amphinomidae."""
    chosen = levels.split()
    unknown = [level for level in chosen if level not in LEVELS]
    if unknown or not chosen:
        raise ValueError(f"config.data.text_levels is {levels!r}; it is made of the words {', '.join(LEVELS)}")
    keys = ["name" if level == "species" else level for level in chosen]
    return tuple(" ".join(category[key] for key in keys) for category in categories)


def read_json(source: Path) -> files.ListFile:
    """The competition's JSON: images, and annotations that give each a category."""
    try:
        content = json.loads(read_text(source))
        paths = {image["id"]: image["file_name"] for image in content["images"]}
        labels = {note["image_id"]: int(note["category_id"]) for note in content["annotations"]}
    except (ValueError, TypeError, LookupError) as error:
        raise ValueError(f"{source}: not the competition's JSON ({error!r})") from error
    for image, path in paths.items():
        label = labels.get(image)
        if label is None:
            raise ValueError(f"{source}: image {image} ({path}) has no annotation")
        if not 0 <= label < CLASSES:
            raise ValueError(f"{source}: image {image} ({path}) has category {label}; they go from 0 to {CLASSES - 1}")
    chosen = [labels[image] for image in paths]
    return files.ListFile(source, list(paths.values()), chosen, list(range(1, len(paths) + 1)))
