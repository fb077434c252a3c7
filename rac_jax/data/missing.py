"""Saying what of a data set is missing, and how to get it, before anything slow begins."""

from collections.abc import Sequence
from pathlib import Path


class MissingData(FileNotFoundError):
    """Some of a data set's files are not where the config says."""

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
