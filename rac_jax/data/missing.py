"""Errors that name the missing files of a data set and say how to get them."""

from collections.abc import Sequence
from pathlib import Path


class MissingData(FileNotFoundError):
    """Files of a data set are missing under the folders that the config names."""

    def __init__(self, title: str, root: str, missing: Sequence[str], how_to_get: str):
        lines = [f"{title}: not complete under --config.data.root={root}. Missing:"]
        lines += [f"  {path}" for path in missing]
        super().__init__("\n".join([*lines, "How to get it:", how_to_get]))


def find_list(title: str, root: str, lists: str, names: Sequence[str], how_to_get: str) -> Path:
    """The first of `names` that exists in the folder of lists ("" = the root)."""
    if not root:
        raise MissingData(title, '""', ["the root itself: set --config.data.root"], how_to_get)
    for folder in (root, lists or root):
        if not Path(folder).is_dir():
            raise MissingData(title, root, [f"the folder {folder}"], how_to_get)
    for name in names:
        if Path(lists or root, name).is_file():
            return Path(lists or root, name)
    missing = " or ".join(str(Path(lists or root, name)) for name in names)
    raise MissingData(title, root, [missing], how_to_get)
