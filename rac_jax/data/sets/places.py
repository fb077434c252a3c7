"""Places365-LT: 365 kinds of scene, 62,500 training images that fall from 4,980 a class to 5."""

from pathlib import Path

from rac_jax.data import files
from rac_jax.data.dataset import Dataset, Split, texts
from rac_jax.data.missing import find_list

CLASSES = 365
IMAGES = {"train": 62_500, "val": 7_300, "test": 36_500}

# Of the lists whose paths begin with train/. Other versions may be valid too.
SHA256 = {
    "Places_LT_train.txt": "726c4871dcbf07ce2f857703bfe32e9a83ffbf52d704239f6d95c4f4f4c247f7",
    "Places_LT_val.txt": "719e3cf3766c09134ea28f56f1036c78def511ac1ed2c2532a6beef78f2439ba",
    "Places_LT_test.txt": "44eee8441c8098c59195465abede425721bc35525d75209f9433b161a6eb37bc",
}

HOW_TO_GET = """\
  lists:  Places_LT_train.txt, Places_LT_val.txt, Places_LT_test.txt, from the data folder that the
          README of github.com/zhmiao/OpenLongTailRecognition-OLTR links to, or from the folder
          datasets/Places_LT of github.com/shijxcs/LIFT. Put them into the root, or name their
          folder with --config.data.lists.
  images: Places365-Standard, small images (256 × 256), from places2.csail.mit.edu/download.html:
          either the archive with the easy directory structure (train/airfield/00000001.jpg,
          val/airfield/Places365_val_00000435.jpg) or the two plain archives
          (data_256/a/airfield/00000001.jpg, val_256/Places365_val_00000435.jpg).
          The root is the folder that holds train/ and val/, or data_256/ and val_256/."""


def load(root: str, lists: str = "") -> Dataset:
    """The lists' images under `root`, in either of the two layouts."""
    sources = {name: find_list("Places365-LT", root, lists, [f"Places_LT_{name}.txt"], HOW_TO_GET) for name in IMAGES}
    read = {name: files.read_list(source, CLASSES) for name, source in sources.items()}
    for name, part in read.items():
        files.check_count(part, IMAGES[name])
    class_names = names_from_paths(read["train"])
    splits = {name: _split(name, Path(root), part, class_names) for name, part in read.items()}
    return Dataset("places_lt", class_names, texts(class_names), splits)


def names_from_paths(train: files.ListFile) -> tuple[str, ...]:
    """The folder of each label's images, by label.

    Not from a file of names: the lists whose paths begin with train/ number five classes differently from
    categories_places365.txt (desert_road, for example, is 116 here and 118 there).
    """
    return files.folder_names(train, CLASSES, class_of)


def class_of(path: str) -> str:
    """train/arena-hockey/1.jpg and data_256/a/arena/hockey/1.jpg are both of arena-hockey."""
    folders = path.split("/")[:-1]
    return "-".join(folders[1:] if len(folders) == 2 else folders[2:])


def layouts(path: str, class_name: str) -> dict[str, str]:
    """Possible paths of a line's image under the root, by layout."""
    file = path.rsplit("/", 1)[-1]
    if file.startswith("Places365_val_"):
        return {"easy": f"val/{class_name}/{file}", "plain": f"val_256/{file}"}
    plain = f"data_256/{class_name[0]}/{class_name.replace('-', '/')}/{file}"
    return {"easy": f"train/{class_name}/{file}", "plain": plain}


def _split(name: str, root: Path, part: files.ListFile, class_names: tuple[str, ...]) -> Split:
    def easy(path: str, label: int) -> str:
        return layouts(path, class_names[label])["easy"]

    def plain(path: str, label: int) -> str:
        return layouts(path, class_names[label])["plain"]

    return files.split_in_any_layout("Places365-LT", name, root, part, [easy, plain], HOW_TO_GET)
