"""Formats are told from the content, and damage is named."""

import json
import pathlib
import pickle

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
        (b"", "no weights file that rac_jax knows"),
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
