"""Formats are told from the content, and damage is named."""

import json
import pathlib
import pickle
import tracemalloc
import zipfile

import numpy as np
import pytest

from rac_jax import weights
from rac_jax.weights import tensor_files

GOLDEN = pathlib.Path(__file__).parent.parent / "golden"
NPZ, SAFETENSORS = GOLDEN / "vit_augreg_npz" / "vit.npz", GOLDEN / "vit_timm" / "model.safetensors"


@pytest.mark.parametrize("file", [NPZ, SAFETENSORS])
def test_the_name_of_a_file_does_not_matter(tmp_path, file):
    (tmp_path / "weights").write_bytes(file.read_bytes())
    expected, found = tensor_files.read(file), tensor_files.read(tmp_path / "weights")
    assert set(found) == set(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


def test_bfloat16_and_half_in_safetensors(tmp_path):
    header = {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]},
        "b": {"dtype": "F16", "shape": [1, 1], "data_offsets": [4, 6]},
    }
    write_safetensors(tmp_path / "low", header, b"\x80\x3f\x00\xc0" + np.float16(0.5).tobytes())
    tensors = tensor_files.read(tmp_path / "low")
    assert set(tensors) == {"a", "b"}
    np.testing.assert_array_equal(tensors["a"].astype(np.float32), [1.0, -2.0])
    np.testing.assert_array_equal(tensors["b"], [[0.5]])


def write_safetensors(path, header, data):
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}, "truncated: tensor w ends at byte"),
        ({"dtype": "F32", "shape": [4], "data_offsets": [0, 8]}, "does not fill bytes 0 to 8"),
        ({"dtype": "F32", "shape": [-2], "data_offsets": [8, 0]}, "does not fill bytes"),
        ({"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}, "does not fill bytes"),
        ({"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}, "is not understood"),
        ({"shape": "x"}, "is not understood"),
        ({"dtype": "F32", "shape": [2.0], "data_offsets": [0, 8]}, "is not understood"),
        ({"dtype": "F32", "shape": [0, 10**30], "data_offsets": [0, 0]}, "damaged"),
        (7, "is not understood"),
    ],
)
def test_a_lying_safetensors_header(tmp_path, entry, message):
    write_safetensors(tmp_path / "w", {"w": entry}, b"\0" * 8)
    with pytest.raises(ValueError, match=message):
        tensor_files.read(tmp_path / "w")


@pytest.mark.parametrize("share", [0.001, 0.5, 0.99])
@pytest.mark.parametrize("file", [NPZ, SAFETENSORS])
def test_truncated(tmp_path, file, share):
    whole = file.read_bytes()
    (tmp_path / "weights").write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(ValueError, match=r"truncated|damaged"):
        tensor_files.read(tmp_path / "weights")


def test_a_corrupt_archive(tmp_path):
    whole = bytearray(NPZ.read_bytes())
    whole[len(whole) // 2] ^= 0xFF
    (tmp_path / "weights").write_bytes(whole)
    with pytest.raises(ValueError, match="damaged: Bad CRC-32"):
        tensor_files.read(tmp_path / "weights")


def test_objects_in_an_npz_are_not_unpickled(tmp_path):
    np.savez(tmp_path / "hostile.npz", weight=np.array([pickle, None], dtype=object)[1:])
    with pytest.raises(ValueError, match="holds something else than arrays"):
        tensor_files.read(tmp_path / "hostile.npz")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "Git LFS pointer"),
        (b"<!DOCTYPE html><html>Not found", "is a web page"),
        (b"", "not a weights file that rac_jax can read"),
        (b"hello, world, and so on", "begins with b'hello, w'"),
    ],
)
def test_what_is_no_weights_file_is_called_what_it_is(tmp_path, content, message):
    (tmp_path / "weights").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        tensor_files.read(tmp_path / "weights")


def test_a_folder_without_tensors(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none of model\.safetensors, pytorch_model\.bin"):
        tensor_files.read(tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no weights file"):
        tensor_files.read(tmp_path / "nothing")


def test_the_digest_is_that_of_the_tensors_file():
    folder = weights.digest(GOLDEN / "vit_hf")
    assert folder == weights.digest(GOLDEN / "vit_hf" / "model.safetensors")
    assert len(folder) == 64


@pytest.mark.parametrize("header", [b"{" + b'"a":{' * 50_000, b"{}[]", b'{"a": [', b'{"a": "b"}'])
def test_a_header_that_is_no_table_of_tensors(tmp_path, header):
    (tmp_path / "w").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(ValueError, match=r"/w"):
        tensor_files.read(tmp_path / "w")


def refused_within(path, limit, match):
    """The file is refused with its name, and less than `limit` bytes were allocated on the way."""
    tracemalloc.start()
    with pytest.raises(ValueError, match=match) as refusal:
        tensor_files.read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert str(path) in str(refusal.value) and peak < limit


@pytest.mark.parametrize("member", ["w.npy", "archive/data.pkl"])
def test_an_archive_that_unpacks_to_far_more_than_weights_do(tmp_path, member):
    with zipfile.ZipFile(tmp_path / "bomb", "w", zipfile.ZIP_DEFLATED) as archive, archive.open(member, "w") as stream:
        for _ in range(200):
            stream.write(bytes(2**20))
    refused_within(tmp_path / "bomb", 2**22, match="would unpack to 209,715,200: these are not weights")


def test_an_array_that_lies_about_its_shape(tmp_path):
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }"
    header = header.ljust(117) + b"\n"
    with zipfile.ZipFile(tmp_path / "lie.npz", "w") as archive:
        archive.writestr("w.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(8))
    refused_within(tmp_path / "lie.npz", 2**22, match="needs 4,000,000,000,000 bytes and has 8")


def test_a_compressed_archive_and_column_order_are_read(tmp_path):
    table = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    np.savez_compressed(tmp_path / "w.npz", table=table, number=np.float32(2.5))
    found = tensor_files.read(tmp_path / "w.npz")
    np.testing.assert_array_equal(found["table"], table)
    assert found["number"] == np.float32(2.5) and found["number"].shape == ()


@pytest.mark.parametrize("text", ["{", "[1]", "[" * 100_000])
def test_a_damaged_config_is_named(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=r"config\.json is damaged"):
        tensor_files.config(tmp_path)


def test_random_damage_is_a_value_error_that_names_the_file(tmp_path):
    """Bytes changed, cut out and put in, seeded: each file is read, or refused by name."""
    draw, refused = np.random.default_rng(0), 0
    files = [NPZ, SAFETENSORS, *(GOLDEN / "torch_files" / name for name in ("zip.pt", "legacy.pt"))]
    for number in range(200):
        content = bytearray(files[number % 4].read_bytes())
        for _ in range(draw.integers(1, 4)):
            place = int(draw.integers(0, min(len(content), 2000) if number % 3 else len(content)))
            content[place : place + int(draw.integers(0, 9))] = draw.bytes(int(draw.integers(0, 9)))
        (tmp_path / "damaged").write_bytes(content)
        try:
            tensor_files.read(tmp_path / "damaged")
        except ValueError as error:
            refused += 1
            assert str(tmp_path / "damaged") in str(error)
    assert refused > 100
