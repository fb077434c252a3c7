"""The same batches for any number of workers, processes and interruptions; every image once."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rac_jax import config, data
from rac_jax.data import pipeline
from rac_jax.data.dataset import ArrayImages, Split
from rac_jax.data.decode import BadImage

GOLDEN = Path(__file__).parents[1] / "golden"


def settings():
    c = config.default()
    c.data.image_size = 16
    return c


def split(count: int = 23) -> Split:
    pixels = np.random.default_rng(0).integers(0, 256, (count, 12, 14, 3), np.uint8)
    return Split("train", ArrayImages("noise", pixels), np.arange(count, dtype=np.int32) % 5)


def some_batches(*, workers: int = 0, skip: int = 0, count: int = 6, **share: int) -> list[pipeline.Batch]:
    transform = data.train_transform(settings())
    batches = pipeline.train_batches(split(), transform, batch_size=8, seed=3, workers=workers, **share)
    return [next(batches) for _ in range(skip + count)][skip:]


def assert_same(a: list[pipeline.Batch], b: list[pipeline.Batch]) -> None:
    assert len(a) == len(b)
    for one, other in zip(a, b, strict=True):
        assert set(one) == set(other) == {"image", "label", "id", "mask"}
        for key in one:
            assert one[key].dtype == other[key].dtype
            np.testing.assert_array_equal(one[key], other[key])


@pytest.mark.parametrize("workers", [1, 2])
def test_same_batches_with_workers(workers: int):
    assert_same(some_batches(), some_batches(workers=workers))


def test_two_processes_together_make_the_same_batches():
    whole = some_batches()
    halves = [some_batches(process=process, processes=2) for process in (0, 1)]
    joined = [{key: np.concatenate([a[key], b[key]]) for key in a} for a, b in zip(halves[0], halves[1], strict=True)]
    assert_same(whole, joined)
    with pytest.raises(ValueError, match="a batch of 8 rows does not divide among 3 processes"):
        some_batches(process=0, processes=3)


def test_a_batch_is_filled_up_with_its_own_first_examples_masked():
    plain, filled = some_batches(), some_batches(rows=12)
    parts = [some_batches(rows=12, process=process, processes=3) for process in range(3)]  # the last has filling alone
    for whole, more, *shares in zip(plain, filled, *parts, strict=True):
        for key in ("image", "label", "id"):
            np.testing.assert_array_equal(more[key], np.concatenate([whole[key], whole[key][:4]]))
        assert more["mask"].tolist() == [True] * 8 + [False] * 4
        for key, values in more.items():
            np.testing.assert_array_equal(values, np.concatenate([share[key] for share in shares]))


@pytest.mark.parametrize("workers", [0, 2])
def test_resume_in_mid_epoch(workers: int):
    """A new iterator that starts at batch 2 of the epoch's almost 3."""
    transform = data.train_transform(settings())
    batches = pipeline.train_batches(split(), transform, batch_size=8, seed=3, workers=workers, start=2)
    assert_same([next(batches) for _ in range(4)], some_batches(skip=2, count=4))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_run_may_start_at_any_batch(workers: int):
    assert_same(some_batches(start=4, count=2, workers=workers), some_batches(skip=4, count=2))


def test_every_epoch_is_every_image_in_another_order():
    batches = some_batches(count=23)  # 8 epochs of 23 images
    ids = np.concatenate([batch["id"] for batch in batches]).reshape(8, 23)
    for epoch in ids:
        assert sorted(epoch) == list(range(23))
    assert len({tuple(epoch) for epoch in ids}) == 8
    labels = np.concatenate([batch["label"] for batch in batches])
    np.testing.assert_array_equal(labels, ids.ravel() % 5)
    assert all(batch["mask"].all() for batch in batches)


def test_an_image_is_augmented_anew_every_epoch():
    batches = some_batches(count=6)
    images = [batch["image"][batch["id"] == 4] for batch in batches]
    seen = np.concatenate([image for image in images if len(image)])
    assert len(seen) == 2
    assert (seen[0] != seen[1]).any()


@pytest.mark.parametrize("processes", [1, 2])
def test_evaluation_sees_every_image_once(processes: int):
    transform = data.eval_transform(settings())
    parts = [
        list(pipeline.eval_batches(split(), transform, batch_size=8, process=process, processes=processes))
        for process in range(processes)
    ]
    assert [len(part) for part in parts] == [3] * processes
    shown = np.concatenate([batch["id"][batch["mask"]] for part in parts for batch in part])
    assert sorted(shown) == list(range(23))
    assert all(batch["image"].shape == (8 // processes, 16, 16, 3) for part in parts for batch in part)


@dataclasses.dataclass(frozen=True)
class SomeBad:
    """Images of which some cannot be read."""

    bad: tuple[int, ...]

    def __len__(self) -> int:
        return 6

    def __getitem__(self, position: int) -> np.ndarray:
        if position in self.bad:
            raise BadImage(f"{position}.jpg: not a usable image")
        return np.full((4, 4, 3), 10 * position, np.uint8)


def with_bad(*bad: int) -> Split:
    return Split("train", SomeBad(bad), np.arange(6, dtype=np.int32))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_bad_image_is_an_error_that_names_it(workers: int):
    batches = pipeline.eval_batches(with_bad(2), data.eval_transform(settings()), batch_size=2, workers=workers)
    with pytest.raises(Exception, match=r"2\.jpg: not a usable image"):
        list(batches)


def test_workers_leave_no_shared_memory_behind():
    """In a process of its own: the message comes when it ends."""
    code = """
import sys
from absl import flags
from rac_jax import data
from rac_jax.data import pipeline
from tests.data import test_pipeline as here
if __name__ == "__main__":
    flags.FLAGS.mark_as_parsed()
    try:
        transform = data.eval_transform(here.settings())
        list(pipeline.eval_batches(here.with_bad(5), transform, batch_size=1, workers=1))
    except Exception as error:
        sys.exit(str(error))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert "5.jpg: not a usable image" in done.stderr
    assert "leaked" not in done.stderr


def test_steps_of_the_recipe():
    """62,500 images in batches of 200 are the schedule's 313 updates an epoch, 9,390 in all."""
    recipe = json.loads((GOLDEN / "schedule.json").read_text())["recipe"]
    images = ArrayImages("blank", np.zeros((62_500, 1, 1, 3), np.uint8))
    places = Split("train", images, np.zeros(62_500, np.int32))
    evaluation = pipeline.eval_batches(places, lambda image, random: image, batch_size=200)
    masks = [batch["mask"].sum() for batch in evaluation]
    assert len(masks) == recipe["updates_per_epoch"]
    assert masks[-1] == 100
    assert len(masks) * recipe["epochs"] == 9390
