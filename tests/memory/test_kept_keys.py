"""Keys that are kept by image: nothing is encoded twice, whatever split it is in."""

import fcntl
import threading

import numpy as np
import pytest

from rac_jax.data.dataset import ArrayImages, Split
from rac_jax.memory import kept_keys


def split_of(numbers):
    numbers = np.asarray(numbers)
    pixels = np.broadcast_to(numbers[:, None, None, None], (len(numbers), 2, 2, 3)).astype(np.uint8)
    return Split("train", ArrayImages("train", pixels), np.zeros(len(numbers), np.int32))


class Encoder:
    """Counts what it encodes."""

    def __init__(self):
        self.seen = []

    def __call__(self, split):
        numbers = [int(split.images[position][0, 0, 0]) for position in range(len(split))]
        self.seen += numbers
        for start in range(0, len(numbers), 3):
            yield np.array([[n, n + 0.5] for n in numbers[start : start + 3]], np.float32)


def all_keys(folder, numbers, encoder):
    return np.concatenate(list(kept_keys.keys(folder, split_of(numbers), encoder)))


def test_an_image_is_encoded_once_in_whatever_split_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(kept_keys, "SHARD", 4)
    encoder = Encoder()
    found = all_keys(tmp_path, [5, 3, 5, 9, 1, 3], encoder)
    assert found[:, 0].tolist() == [5, 3, 5, 9, 1, 3] and found.dtype == np.float32
    assert sorted(encoder.seen) == [1, 3, 5, 9]
    again = Encoder()
    assert all_keys(tmp_path, [9, 2, 1], again)[:, 1].tolist() == [9.5, 2.5, 1.5]
    assert again.seen == [2]


def test_a_damaged_file_is_made_again(tmp_path, caplog):
    all_keys(tmp_path, [1, 2], Encoder())
    (file,) = tmp_path.glob("keys-*.npz")
    file.write_bytes(file.read_bytes()[:-30])
    encoder = Encoder()
    assert all_keys(tmp_path, [2, 1], encoder)[:, 0].tolist() == [2, 1]
    assert sorted(encoder.seen) == [1, 2] and "is damaged" in caplog.text


def test_another_process_that_encodes_is_waited_for(tmp_path):
    encoder, found = Encoder(), []
    with (tmp_path / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        thread = threading.Thread(target=lambda: found.append(all_keys(tmp_path, [1, 2], encoder)))
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
        store = kept_keys.Store(tmp_path)
        store.add(kept_keys.digests_of(split_of([1, 2]).images), np.array([[1, 1], [2, 2]], np.float32))
    thread.join(10)
    assert found[0].tolist() == [[1, 1], [2, 2]] and not encoder.seen


def test_another_encoder_or_preprocessing_has_a_folder_of_its_own(tmp_path):
    recipe = {"encoder": {"name": "a"}, "preprocessing": {"image_size": 32}, "index": {"kind": "flat"}}
    mine = kept_keys.folder_of(tmp_path, recipe)
    assert kept_keys.folder_of(tmp_path, recipe | {"index": {"kind": "hnsw"}}) == mine
    assert kept_keys.folder_of(tmp_path, recipe | {"encoder": {"name": "b"}}) != mine
    assert kept_keys.folder_of(tmp_path, recipe | {"preprocessing": {"image_size": 64}}) != mine


@pytest.mark.parametrize("count", [1, 7])
def test_digests_are_of_the_content(count):
    digests = kept_keys.digests_of(split_of([4] * count + [5]).images)
    assert len(set(digests)) == 2 and digests[0] == digests[count - 1] != digests[-1]
