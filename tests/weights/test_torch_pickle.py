"""Torch files of both formats, and files that try to do more than hold tensors."""

import io
import os
import pathlib
import pickle
import struct
import zipfile

import numpy as np
import pytest

from rac_jax.weights import tensor_files, torch_pickle

GOLDEN = pathlib.Path(__file__).parent.parent / "golden" / "torch_files"
FORMATS = ["zip.pt", "legacy.pt"]


@pytest.mark.parametrize("file", FORMATS)
def test_every_type_view_and_shared_storage(file):
    tensors = tensor_files.read(GOLDEN / file)
    expected = np.load(GOLDEN / "expected.npz")
    assert set(tensors) == set(expected.files)
    for name in expected.files:
        np.testing.assert_array_equal(tensors[name].astype(np.float64), expected[name], err_msg=name)
    assert tensors["bfloat16"].dtype.name == "bfloat16"
    assert tensors["transposed"].shape == (6, 4)


class Attack:
    """Pickles itself as a call."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


def legacy_file(path, content):
    parts = [pickle.dumps(part, protocol=2) for part in (torch_pickle.LEGACY_MAGIC, 1001, {}, content, [])]
    path.write_bytes(b"".join(parts))


def zip_file(path, content):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", content if isinstance(content, bytes) else pickle.dumps(content, 2))


@pytest.mark.parametrize("write", [legacy_file, zip_file])
def test_a_malicious_pickle_executes_nothing(tmp_path, write):
    trace = tmp_path / "executed"
    for attack in (Attack(os.system, f"touch {trace}"), Attack(eval, f"open({str(trace)!r}, 'w')")):
        write(tmp_path / "hostile.pt", {"weight": attack})
        with pytest.raises(torch_pickle.RefusedFile, match=r"asks for .*\. Nothing was executed"):
            tensor_files.read(tmp_path / "hostile.pt")
    assert not trace.exists()


@pytest.mark.parametrize(
    "opcodes",
    [
        b"cbuiltins\neval\n(S'1'\ntR.",  # GLOBAL, REDUCE
        b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93(\x8c\x011tR.",  # STACK_GLOBAL
        b"(S'1'\nibuiltins\neval\n.",  # INST
        b"(cbuiltins\neval\nS'1'\no.",  # OBJ
        b"\x80\x02ctorch\nFloatStorage.__init__\n.",  # a dotted name
        b"ctorch._utils\n_rebuild_tensor_v2.__globals__\n.",
        b"c\x2e\x2e\nsystem\n.",
    ],
)
def test_no_way_of_naming_a_function_gets_through(tmp_path, opcodes):
    zip_file(tmp_path / "hostile.pt", opcodes)
    with pytest.raises(torch_pickle.RefusedFile):
        tensor_files.read(tmp_path / "hostile.pt")


def test_the_shell_of_a_script_module_takes_no_state_but_data(tmp_path):
    zip_file(tmp_path / "script.pt", b"c__torch__\nX\n)\x81}S'__class__'\nNsb.")
    assert tensor_files.read(tmp_path / "script.pt") == {}


def test_a_persistent_id_that_is_no_storage_is_refused(tmp_path):
    class Pickler(pickle.Pickler):
        def persistent_id(self, value):
            return ("module", "os", "system") if value == "here" else None

    stream = io.BytesIO()
    Pickler(stream, 2).dump({"weight": "here"})
    zip_file(tmp_path / "hostile.pt", stream.getvalue())
    with pytest.raises(torch_pickle.RefusedFile, match="is not a storage of tensors"):
        tensor_files.read(tmp_path / "hostile.pt")


def tensor_file(path, *, offset=0, shape=(4,), strides=(1,), stored=4):
    """A legacy file with one float tensor, whose description may lie."""
    persistent = (
        b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpu"
        + b"K"
        + bytes([stored])
        + b"NtQ"
    )

    def numbers(values):
        return b"(" + b"".join(b"J" + struct.pack("<i", value) for value in values) + b"t"

    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n(" + persistent + b"J" + struct.pack("<i", offset)
    tensor += numbers(shape) + numbers(strides) + b"\x89}tR"
    content = b"\x80\x02}X\x06\x00\x00\x00weight" + tensor + b"s."
    heads = [pickle.dumps(part, protocol=2) for part in (torch_pickle.LEGACY_MAGIC, 1001, {})]
    data = struct.pack("<q", stored) + np.arange(stored, dtype="<f4").tobytes()
    path.write_bytes(b"".join([*heads, content, pickle.dumps(["0"], protocol=2), data]))


def test_the_handmade_file_reads(tmp_path):
    tensor_file(tmp_path / "weights.pt")
    np.testing.assert_array_equal(tensor_files.read(tmp_path / "weights.pt")["weight"], [0, 1, 2, 3])


@pytest.mark.parametrize(
    "lie",
    [
        {"offset": 1},
        {"shape": (5,)},
        {"strides": (2,)},
        {"shape": (2, 4), "strides": (4, 1)},
        {"shape": (9,), "strides": (0,)},
    ],
)
def test_a_tensor_cannot_reach_past_its_storage(tmp_path, lie):
    tensor_file(tmp_path / "hostile.pt", **lie)
    with pytest.raises(torch_pickle.RefusedFile, match=r"weight of shape .* reaches past the end of its storage"):
        tensor_files.read(tmp_path / "hostile.pt")


@pytest.mark.parametrize("lie", [{"offset": -1}, {"shape": (-4,)}, {"strides": (-1,)}, {"shape": (2, 2)}])
def test_a_tensor_is_described_by_whole_numbers_that_fit(tmp_path, lie):
    tensor_file(tmp_path / "hostile.pt", **lie)
    with pytest.raises(torch_pickle.RefusedFile):
        tensor_files.read(tmp_path / "hostile.pt")


@pytest.mark.parametrize("file", FORMATS)
@pytest.mark.parametrize("share", [0.05, 0.3, 0.6, 0.9, 0.999])
def test_a_truncated_file_says_so(tmp_path, file, share):
    whole = (GOLDEN / file).read_bytes()
    (tmp_path / file).write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(ValueError, match=r"truncated|damaged"):
        tensor_files.read(tmp_path / file)


def test_a_pickle_that_is_not_torchs(tmp_path):
    (tmp_path / "other.pkl").write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(torch_pickle.RefusedFile, match="but not one of torch's"):
        tensor_files.read(tmp_path / "other.pkl")


@pytest.mark.parametrize("write", [legacy_file, zip_file])
def test_dictionaries_that_share_others_are_refused_instead_of_walked_for_ever(tmp_path, write):
    content = {}
    for _ in range(60):
        content = {"a": content, "b": content}
    write(tmp_path / "shared.pt", content)
    with pytest.raises(torch_pickle.RefusedFile, match=r"shared\.pt nests its dictionaries too deeply, or"):
        tensor_files.read(tmp_path / "shared.pt")


def test_a_pickle_that_numbers_its_objects_absurdly_allocates_nothing(tmp_path):
    zip_file(tmp_path / "memo.pt", b"\x80\x02}r\xff\xff\xff\x7f.")  # LONG_BINPUT 2**31 - 1
    with pytest.raises(torch_pickle.RefusedFile, match=r"memo\.pt is refused: it stores an object under the number"):
        tensor_files.read(tmp_path / "memo.pt")


def test_a_reference_to_shared_tuples_is_refused_instead_of_printed_for_ever(tmp_path):
    deep = ()
    for _ in range(60):
        deep = (deep, deep)

    class Pickler(pickle.Pickler):
        def persistent_id(self, thing):
            return deep if thing == "here" else None

    buffer = io.BytesIO()
    Pickler(buffer, 2).dump({"w": "here"})
    zip_file(tmp_path / "reference.pt", buffer.getvalue())
    with pytest.raises(torch_pickle.RefusedFile, match="its tuples contain each other too often"):
        tensor_files.read(tmp_path / "reference.pt")


def test_a_key_of_tuples_that_share_others_is_refused_instead_of_hashed_for_ever(tmp_path):
    deep = ()
    for _ in range(60):
        deep = (deep, deep)
    nested = pickle.dumps(deep, 2)[2:-1]  # without its header and end
    zip_file(tmp_path / "key.pt", b"\x80\x02}" + nested + b"K\x01s.")  # {deep: 1}
    with pytest.raises(torch_pickle.RefusedFile, match=r"key\.pt is refused: its tuples contain each other too often"):
        tensor_files.read(tmp_path / "key.pt")


def test_tuples_that_many_groups_share_are_read(tmp_path):
    betas = (0.9, 0.999)
    groups = [{"betas": betas, "size": (number, number)} for number in range(300)]
    legacy_file(tmp_path / "shared.pt", {"state_dict": {}, "optimizer": {"param_groups": groups}})
    assert tensor_files.read(tmp_path / "shared.pt") == {}
