"""Reads the tensors of a torch file, zipped or legacy, without torch and without executing anything.

A pickle is a program that names functions to be called. This unpickler knows only dictionaries, tensors, storages and
empty shells of TorchScript modules, and refuses any other name before anything is called. Tensors stay on disk (memory
maps) until they are used.
"""

import collections
import dataclasses
import itertools
import math
import pathlib
import pickle
import pickletools
import struct
import zipfile
from typing import IO, Any

import ml_dtypes
import numpy as np

LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
DEEPEST, MOST_ENTRIES, MOST_WORK = 64, 100_000, 10**7

_DTYPES = {
    "FloatStorage": np.dtype(np.float32),
    "DoubleStorage": np.dtype(np.float64),
    "HalfStorage": np.dtype(np.float16),
    "BFloat16Storage": np.dtype(ml_dtypes.bfloat16),
    "LongStorage": np.dtype(np.int64),
    "IntStorage": np.dtype(np.int32),
    "ShortStorage": np.dtype(np.int16),
    "CharStorage": np.dtype(np.int8),
    "ByteStorage": np.dtype(np.uint8),
    "BoolStorage": np.dtype(np.bool_),
}


class RefusedFile(ValueError):
    """A torch file that is damaged, or that asks for more than tensors."""


@dataclasses.dataclass(frozen=True)
class _Storage:
    key: str
    dtype: np.dtype


@dataclasses.dataclass(frozen=True)
class _Tensor:
    """The position of a tensor in its storage; the bytes are read later."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def _rebuild_tensor(storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> _Tensor:
    numbers = (offset, *shape, *strides)
    whole = all(isinstance(n, int) and n >= 0 for n in numbers) and len(shape) == len(strides)
    if not isinstance(storage, _Storage) or not whole:
        raise RefusedFile("a tensor is not described by a storage and non-negative integers")
    return _Tensor(storage, offset, tuple(shape), tuple(strides))


def _rebuild_parameter(tensor: Any, *_: Any) -> Any:
    return tensor


class _ScriptShell:
    """Holds the attributes of a TorchScript module without its code."""

    def __setstate__(self, state: Any) -> None:
        self.__dict__["attributes"] = state


_ALLOWED = {
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("torch._utils", "_rebuild_tensor"): _rebuild_tensor,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
    ("torch", "Size"): tuple,
}


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: IO[bytes], path: pathlib.Path):
        super().__init__(stream, encoding="utf-8")
        self.path = path

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in _DTYPES:
            return _DTYPES[name]
        if module == "__torch__" or module.startswith("__torch__."):
            return _ScriptShell
        if (module, name) in _ALLOWED:
            return _ALLOWED[module, name]
        raise RefusedFile(
            f"{self.path} asks for {module}.{name}, which is not a tensor. Nothing was executed. A file of plain "
            "tensors works: torch.save(model.state_dict(), path), or safetensors"
        )

    def persistent_load(self, pid: Any) -> _Storage:
        if not (isinstance(pid, tuple) and len(pid) >= 5 and pid[0] == "storage" and isinstance(pid[1], np.dtype)):
            raise RefusedFile(f"{self.path} refers to something that is not a storage of tensors")
        return _Storage(str(pid[2]), pid[1])


def _unpickle(stream: IO[bytes], path: pathlib.Path) -> Any:
    try:
        _check_program(stream)
        return _Unpickler(stream, path).load()
    except RefusedFile as error:
        if str(path) in str(error):
            raise
        raise RefusedFile(f"{path} is refused: {error}") from error
    except Exception as error:  # a damaged pickle can raise any exception
        raise RefusedFile(f"{path} is damaged: its pickle ends in {type(error).__name__}: {error}") from error


def _check_program(stream: IO[bytes]) -> None:
    """Refuse a pickle that would make the unpickler allocate or compute without bounds.

    The unpickler allocates up to the highest number of a stored object. Tuples that contain others several times are
    small in the file, but hashing one as a dictionary key visits them all: `weight` is an upper bound of these visits.
    """
    start, weight, fetched = stream.tell(), 0, 0
    weights: dict[int, int] = {}  # of stored objects
    for opcode, argument, position in pickletools.genops(stream):
        if opcode.name in ("GET", "BINGET", "LONG_BINGET"):
            weight = weights.get(int(argument or 0), 0)
            fetched += weight
        elif opcode.name in ("PUT", "BINPUT", "LONG_BINPUT"):
            if int(argument or 0) > (position or 0) - start:
                raise RefusedFile(f"it stores an object under the number {argument}")
            weights[int(argument or 0)] = weight
        elif opcode.name == "MEMOIZE":
            weights[len(weights)] = weight
        elif opcode.name in ("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "REDUCE"):
            weight = 1 + fetched
        elif opcode.name in ("DUP", "POP", "POP_MARK", "FROZENSET"):
            raise RefusedFile(f"it uses the instruction {opcode.name}, which files of tensors do not need")
        else:
            weight = 0
        if fetched > MOST_WORK:
            raise RefusedFile("its tuples contain each other too often")
    stream.seek(start)


def read_legacy(path: pathlib.Path) -> dict[str, np.ndarray]:
    """The format of torch before 1.6: four pickles, then the storages one after the other."""
    with path.open("rb") as stream:
        if _unpickle(stream, path) != LEGACY_MAGIC:
            raise RefusedFile(f"{path} is a pickle, but not one of torch's")
        _unpickle(stream, path)  # protocol version
        _unpickle(stream, path)  # sizes of C types
        content = _unpickle(stream, path)
        keys = _unpickle(stream, path)
        start = stream.tell()
    tensors = _named_tensors(content, path)
    dtypes = {tensor.storage.key: tensor.storage.dtype for tensor in tensors.values()}
    size, storages = path.stat().st_size, {}
    for key in keys if isinstance(keys, list) else []:
        if key not in dtypes:
            raise RefusedFile(f"{path} holds a storage {key!r} that no tensor uses; its length is unknown")
        with path.open("rb") as stream:
            stream.seek(start)
            head = stream.read(8)
        length = struct.unpack("<q", head)[0] if len(head) == 8 else -1
        stop = start + 8 + length * dtypes[key].itemsize
        if length < 0 or stop > size:
            raise RefusedFile(f"{path} is truncated: it has {size} bytes and its tensors need at least {stop}")
        storages[key] = _mapped(path, start + 8, dtypes[key], length)
        start = stop
    return {name: _view(tensor, storages, name, path) for name, tensor in tensors.items()}


def read_zip(path: pathlib.Path) -> dict[str, np.ndarray]:
    """The format of torch since 1.6, and TorchScript: a zip with data.pkl and one entry a storage."""
    with zipfile.ZipFile(path) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
        pickles = [name for name in entries if name == "data.pkl" or name.endswith("/data.pkl")]
        with archive.open(pickles[0]) as stream:
            content = _unpickle(stream, path)
        folder = pickles[0].removesuffix("data.pkl")
        tensors = _named_tensors(content, path)
        storages = {}
        for tensor in tensors.values():
            key, dtype = tensor.storage.key, tensor.storage.dtype
            if key not in storages:
                storages[key] = _zipped_storage(archive, entries.get(f"{folder}data/{key}"), dtype, path, key)
    return {name: _view(tensor, storages, name, path) for name, tensor in tensors.items()}


def _zipped_storage(
    archive: zipfile.ZipFile, entry: zipfile.ZipInfo | None, dtype: np.dtype, path: pathlib.Path, key: str
) -> np.ndarray:
    if entry is None:
        raise RefusedFile(f"{path} has no storage {key!r}, which one of its tensors needs")
    if entry.compress_type != zipfile.ZIP_STORED:
        return np.frombuffer(archive.read(entry), dtype)
    with path.open("rb") as stream:
        stream.seek(entry.header_offset + 26)
        name_length, extra_length = struct.unpack("<HH", stream.read(4))
    start = entry.header_offset + 30 + name_length + extra_length
    if start + entry.file_size > path.stat().st_size:
        raise RefusedFile(f"{path} is truncated in storage {key!r}")
    return _mapped(path, start, dtype, entry.file_size // dtype.itemsize)


def _mapped(path: pathlib.Path, start: int, dtype: np.dtype, length: int) -> np.ndarray:
    if length == 0:
        return np.zeros((0,), dtype)
    return np.memmap(path, dtype, mode="r", offset=start, shape=(length,))


def _view(tensor: _Tensor, storages: dict[str, np.ndarray], name: str, path: pathlib.Path) -> np.ndarray:
    storage = storages.get(tensor.storage.key)
    reach = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.strides, strict=True))
    empty = 0 in tensor.shape
    if storage is None or storage.dtype != tensor.storage.dtype:
        raise RefusedFile(f"{path}: tensor {name} has no storage of {tensor.storage.dtype}")
    if not empty and (tensor.offset + reach >= storage.size or math.prod(tensor.shape) > storage.size):
        raise RefusedFile(f"{path}: tensor {name} of shape {tensor.shape} reaches past the end of its storage")
    if empty:
        return np.zeros(tensor.shape, storage.dtype)
    strides = tuple(stride * storage.itemsize for stride in tensor.strides)
    return np.lib.stride_tricks.as_strided(storage[tensor.offset :], tensor.shape, strides, writeable=False)


def _named_tensors(content: Any, path: pathlib.Path) -> dict[str, _Tensor]:
    """Flattens nested dictionaries and modules to dotted names; numbers and text beside the tensors are left out."""
    found: dict[str, _Tensor] = {}
    visits = itertools.count(1)

    def walk(value: Any, name: str, depth: int) -> None:
        # Dictionaries may share others: a small file can have more paths than could ever be visited.
        if depth > DEEPEST or next(visits) > MOST_ENTRIES:
            raise RefusedFile(f"{path} nests its dictionaries too deeply, or has more than {MOST_ENTRIES:,} entries")
        if isinstance(value, _ScriptShell):
            value = getattr(value, "attributes", {})
        if isinstance(value, _Tensor):
            found[name] = value
        elif isinstance(value, dict):
            for key, item in value.items():
                walk(item, f"{name}.{key}" if name else str(key), depth + 1)

    walk(_unwrapped(content), "", 0)
    return found


def _unwrapped(content: Any) -> Any:
    """The weights inside a training checkpoint, which keeps them beside its optimiser's state."""
    if isinstance(content, dict):
        for key in ("state_dict_ema", "model_ema", "state_dict", "model"):
            if isinstance(content.get(key), dict):
                return content[key]
    return content
