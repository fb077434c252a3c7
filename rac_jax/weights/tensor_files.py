"""Reads any supported weights file into named arrays; the format is recognised by content, not by name."""

import hashlib
import json
import math
import pathlib
import struct
import zipfile
import zlib
from collections.abc import Mapping

import ml_dtypes
import numpy as np
from numpy.lib import format as npy

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
_LARGEST_RATIO, _SMALL = 50, 2**26  # an archive that unpacks to more bytes than 50 times its own and 64 MB is refused
_DAMAGE = (  # what readers of damaged files raise
    ValueError, TypeError, LookupError, ArithmeticError, RuntimeError, MemoryError, EOFError, OSError,
    struct.error, zlib.error, zipfile.BadZipFile,
)  # fmt: skip
_FOLDER_FILES = ("model.safetensors", "pytorch_model.bin", "open_clip_pytorch_model.bin")


def read(path: str | pathlib.Path) -> dict[str, np.ndarray]:
    """Reads .npz, .safetensors, torch's .pt/.pth/.bin (zip or legacy), or a Hugging Face folder.

    Arrays may be memory maps: they cost nothing until they are used. A file that cannot be read is a ValueError that
    names it, whatever is wrong with it; sizes that a file claims are checked before anything is allocated.
    """
    path = tensors_file(path)
    try:
        return _read(path)
    except _DAMAGE as error:
        if str(path) in str(error):
            raise
        raise ValueError(f"{path} is truncated or damaged: {error}") from error


def _read(path: pathlib.Path) -> dict[str, np.ndarray]:
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
    return _json(beside.read_bytes(), str(beside)) if beside.is_file() else {}


def _json(text: bytes, source: str) -> dict:
    """A JSON object; `source` begins the error's sentence."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{source} is damaged: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{source} is damaged: it is not a JSON object")
    return found


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
        f"{path} is not a weights file that rac_jax can read: it begins with {head[:8]!r}. "
        "Supported are .npz, .safetensors, torch's .pt and .pth, and Hugging Face folders"
    )


def _read_zip(path: pathlib.Path) -> dict[str, np.ndarray]:
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        unpacked, size = sum(entry.file_size for entry in entries), path.stat().st_size
        if unpacked > _LARGEST_RATIO * size + _SMALL:
            raise ValueError(f"{path} has {size:,} bytes and would unpack to {unpacked:,}: these are not weights")
        if any(entry.filename == "data.pkl" or entry.filename.endswith("/data.pkl") for entry in entries):
            return torch_pickle.read_zip(path)
        return {entry.filename.removesuffix(".npy"): _npz_array(archive, entry, path) for entry in entries}


def _npz_array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, path: pathlib.Path) -> np.ndarray:
    """One array of an .npz; its shape must be that of the bytes it has."""
    with archive.open(entry) as stream:
        try:
            major, _ = npy.read_magic(stream)
            read_header = npy.read_array_header_1_0 if major == 1 else npy.read_array_header_2_0
            shape, column_order, dtype = read_header(stream)
        except ValueError as error:
            raise ValueError(f"{path} holds something else than arrays: {entry.filename}: {error}") from error
        if dtype.hasobject:
            raise ValueError(f"{path} holds something else than arrays: {entry.filename} has Python objects")
        wanted, given = math.prod(shape) * dtype.itemsize, entry.file_size - stream.tell()
        if min(shape, default=0) < 0 or wanted != given:
            raise ValueError(
                f"{path}: array {entry.filename} of shape {shape} needs {wanted:,} bytes and has {given:,}"
            )
        array = np.frombuffer(stream.read(), dtype)
    return array.reshape(shape, order="F" if column_order else "C")


def _read_safetensors(path: pathlib.Path) -> dict[str, np.ndarray]:
    size = path.stat().st_size
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if length > size - 8:
            raise ValueError(f"{path} is truncated: its header alone needs {length} of its {size} bytes")
        header = _json(stream.read(length), f"{path} looks like safetensors, but its header")
    header.pop("__metadata__", None)
    return {name: _safetensor(path, name, entry, 8 + length, size) for name, entry in header.items()}


def _safetensor(path: pathlib.Path, name: str, entry: dict, base: int, size: int) -> np.ndarray:
    try:
        dtype, shape = _SAFETENSORS_DTYPES[entry["dtype"]], tuple(entry["shape"])
        start, stop = entry["data_offsets"]
        if not all(type(number) is int for number in (start, stop, *shape)):
            raise TypeError
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
