"""One reader for every kind of weights file: path to named arrays, the format recognised from the content."""

import hashlib
import json
import math
import pathlib
import zipfile
from collections.abc import Mapping

import ml_dtypes
import numpy as np

from rac_jax.weights import torch_pickle

Tensors = Mapping[str, np.ndarray]

_SAFETENSORS_DTYPES = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
_FOLDER_FILES = ("model.safetensors", "pytorch_model.bin", "open_clip_pytorch_model.bin")


def read(path: str | pathlib.Path) -> dict[str, np.ndarray]:
    """Reads .npz, .safetensors, torch's .pt/.pth/.bin (zip or legacy), or a Hugging Face folder.

    Arrays may be memory maps: they cost nothing until they are used.
    """
    path = tensors_file(path)
    with path.open("rb") as stream:
        head = stream.read(64)
    if head.startswith(b"PK\x03\x04"):
        return _read_zip(path)
    if head.startswith(b"\x80"):
        return torch_pickle.read_legacy(path)
    if len(head) > 8 and head[8:9] == b"{":
        return _read_safetensors(path)
    raise ValueError(_unknown(path, head))


def tensors_file(path: str | pathlib.Path) -> pathlib.Path:
    """The file itself, or the one that holds the tensors of a Hugging Face folder."""
    path = pathlib.Path(path)
    if path.is_file():
        return path
    if not path.is_dir():
        raise FileNotFoundError(f"there is no weights file {path}")
    for name in _FOLDER_FILES:
        if (path / name).is_file():
            return path / name
    raise FileNotFoundError(f"{path} is a folder with none of {', '.join(_FOLDER_FILES)} in it")


def config(path: str | pathlib.Path) -> dict:
    """The config.json beside the tensors of a Hugging Face folder, or {} when there is none."""
    path = pathlib.Path(path)
    beside = (path if path.is_dir() else path.parent) / "config.json"
    return json.loads(beside.read_text()) if beside.is_file() else {}


def digest(path: str | pathlib.Path) -> str:
    """sha256 of the file that holds the tensors."""
    with tensors_file(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _unknown(path: pathlib.Path, head: bytes) -> str:
    if head.startswith(b"version https://git-lfs"):
        return f"{path} is a Git LFS pointer, not the weights: run `git lfs pull` where it came from"
    if head.lstrip().lower().startswith((b"<!doctype", b"<html")):
        return f"{path} is a web page, not weights: the download needed a login or the address was wrong"
    return (
        f"{path} is no weights file that rac_jax knows: it begins with {head[:8]!r}. "
        "Known are .npz, .safetensors, torch's .pt and .pth, and Hugging Face folders"
    )


def _read_zip(path: pathlib.Path) -> dict[str, np.ndarray]:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
        if any(name == "data.pkl" or name.endswith("/data.pkl") for name in names):
            return torch_pickle.read_zip(path)
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (zipfile.BadZipFile, EOFError, OSError) as error:
        raise ValueError(f"{path} is truncated or damaged: {error}") from error
    except ValueError as error:
        if isinstance(error, torch_pickle.RefusedFile):
            raise
        raise ValueError(f"{path} holds something else than arrays: {error}") from error


def _read_safetensors(path: pathlib.Path) -> dict[str, np.ndarray]:
    size = path.stat().st_size
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if length > size - 8:
            raise ValueError(f"{path} is truncated: its header alone needs {length} of its {size} bytes")
        try:
            header = json.loads(stream.read(length))
        except ValueError as error:
            raise ValueError(f"{path} looks like safetensors, but its header is damaged: {error}") from error
    header.pop("__metadata__", None)
    return {name: _safetensor(path, name, entry, 8 + length, size) for name, entry in header.items()}


def _safetensor(path: pathlib.Path, name: str, entry: dict, base: int, size: int) -> np.ndarray:
    try:
        dtype, shape = _SAFETENSORS_DTYPES[entry["dtype"]], tuple(entry["shape"])
        start, stop = entry["data_offsets"]
        fits = stop - start == math.prod(shape) * dtype.itemsize and start >= 0 and min(shape, default=0) >= 0
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: tensor {name} is described as {entry}, which is not understood") from error
    if not fits:
        raise ValueError(f"{path}: tensor {name} of shape {shape} does not fill bytes {start} to {stop}")
    if base + stop > size:
        raise ValueError(f"{path} is truncated: tensor {name} ends at byte {base + stop} of {size}")
    if start == stop:
        return np.zeros(shape, dtype)
    return np.memmap(path, dtype, mode="r", offset=base + start, shape=shape)
