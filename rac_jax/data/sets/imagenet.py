"""ImageNet-LT: 1,000 classes, 115,846 training images that fall from 1,280 a class to 5."""

from pathlib import Path

from rac_jax.data import files
from rac_jax.data.dataset import Dataset, Split, words
from rac_jax.data.missing import find_list
from rac_jax.data.text_files import read_lines

CLASSES = 1_000
IMAGES = {"train": 115_846, "val": 20_000, "test": 50_000}
NAMED_IN = ["classnames.txt", "LOC_synset_mapping.txt", "synset_words.txt"]

HOW_TO_GET = """\
  lists:  ImageNet_LT_train.txt, ImageNet_LT_val.txt, ImageNet_LT_test.txt, from the data folder that
          the README of github.com/zhmiao/OpenLongTailRecognition-OLTR links to, or from the folder
          datasets/ImageNet_LT of github.com/shijxcs/LIFT; and the classes' names: that folder's
          classnames.txt, or LOC_synset_mapping.txt of the Kaggle archive, or synset_words.txt.
          Put them into the root, or name their folder with --config.data.lists.
  images: ImageNet 2012 (ILSVRC2012), from image-net.org or as the Kaggle archive: the root is the
          folder that holds train/n01440764/… and val/, with or without a folder for each class."""


def load(root: str, lists: str = "") -> Dataset:
    """The lists' images under `root`; validation images may be in class folders or all in one folder."""
    sources = {name: find_list("ImageNet-LT", root, lists, [f"ImageNet_LT_{name}.txt"], HOW_TO_GET) for name in IMAGES}
    read = {name: files.read_list(source, CLASSES) for name, source in sources.items()}
    for name, part in read.items():
        files.check_count(part, IMAGES[name])
    synsets = files.folder_names(read["train"], CLASSES, lambda path: path.split("/")[-2])
    texts = _class_texts(find_list("ImageNet-LT", root, lists, NAMED_IN, HOW_TO_GET), synsets)
    splits = {name: _split(name, Path(root), part, synsets) for name, part in read.items()}
    return Dataset("imagenet_lt", synsets, texts, splits)


def _class_texts(source: Path, synsets: tuple[str, ...]) -> tuple[str, ...]:
    """The first name of each synset: `n01440764 tench, Tinca tinca` is tench."""
    named = {}
    for number, line in enumerate(read_lines(source), start=1):
        if line.strip():
            synset, _, name = line.strip().partition(" ")
            if not name:
                raise ValueError(f"{source}, line {number}: expected `synset name`, got {line!r}")
            named[synset] = name
    absent = [synset for synset in synsets if synset not in named]
    if absent:
        raise ValueError(f"{source}: no name for {absent[0]}")
    return tuple(words(named[synset].split(",")[0]) for synset in synsets)


def _split(name: str, root: Path, part: files.ListFile, synsets: tuple[str, ...]) -> Split:
    def in_class_folder(path: str, label: int) -> str:
        return f"{path.split('/')[0]}/{synsets[label]}/{path.rsplit('/', 1)[-1]}"

    def in_one_folder(path: str, _: int) -> str:
        return f"{path.split('/')[0]}/{path.rsplit('/', 1)[-1]}"

    return files.split_in_any_layout("ImageNet-LT", name, root, part, [in_class_folder, in_one_folder], HOW_TO_GET)
