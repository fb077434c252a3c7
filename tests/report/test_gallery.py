"""The pictures of an evaluation, of a run with hostile names and damaged images; no model is trained."""

import dataclasses

import numpy as np
import pytest

from rac_jax.data.decode import BadImage
from rac_jax.metrics import Counts
from rac_jax.report import gallery, pictures
from rac_jax.report.predictions import Predictions, Votes
from rac_jax.report.tensorboard import TensorBoard
from rac_jax.run import Run
from tests import tiny
from tests.report import hostile

PLOTS = {"by_class", "by_frequency", "confusion", "calibration"}


class Damaged:
    """Images of which none can be decoded."""

    def __getitem__(self, position):
        raise BadImage(f"{position}: not a usable image")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    config = tiny.config(devices=1)
    config.eval.show = 1
    made = Run.from_config(config, tmp_path_factory.mktemp("run"))
    names = hostile.NAMES[:10]
    return dataclasses.replace(made, dataset=dataclasses.replace(made.dataset, class_names=names, class_texts=names))


def predictions_of(ids=(0, 1, 2)):
    labels = np.arange(len(ids), dtype=np.int32)
    votes = Votes((labels + 1) % 10, np.full(len(ids), 0.5), np.full(len(ids), 0.25))
    rows = np.tile(np.arange(30, dtype=np.int32), (len(ids), 1))
    return Predictions(np.array(ids), labels, {"fused": votes}, rows, np.ones(rows.shape, np.float32))


def draw(run, folder, ids=(0, 1, 2)):
    counts = {"fused": Counts(*(np.full(10, 5),) * 3)}
    with TensorBoard(None) as board:
        gallery.draw(run, counts, predictions_of(ids), "test", 1, folder, board)
    return {path.stem for path in folder.iterdir()}


def test_classes_may_have_any_name(run, tmp_path):
    assert draw(run, tmp_path / "report") == PLOTS | {"random_0", "worst_0"}


def test_a_damaged_training_image_does_not_stop_the_pictures(run, tmp_path):
    train = dataclasses.replace(run.dataset.split("train"), images=Damaged())
    dataset = dataclasses.replace(run.dataset, splits={**run.dataset.splits, "train": train})
    assert draw(dataclasses.replace(run, dataset=dataset), tmp_path / "report") == PLOTS | {"random_0", "worst_0"}


def test_a_picture_that_cannot_be_drawn_is_left_out_with_a_warning(run, tmp_path, caplog):
    assert draw(run, tmp_path / "report", ids=[10**6] * 3) == PLOTS
    assert "the picture test/worst_0 could not be drawn: IndexError" in caplog.text
    assert "the picture neighbours/test_0 could not be drawn" in caplog.text


def test_the_frames_of_a_strip_compare_labels_not_texts(run):
    """The texts of the rows are not those of the classes; row 3 has no label."""
    labels = np.asarray(run.retriever.knowledge.row_label).copy()
    labels[:8] = [1, 0, 1, -1, 5, 1, 2, 1]
    found = dataclasses.replace(run.retriever, knowledge=run.retriever.knowledge.replace(row_label=labels))
    strip = gallery._strip(dataclasses.replace(run, retriever=found), predictions_of(), "test", place=1)
    frames = [tuple(strip[0, 102 * i]) for i in range(9)]
    right, wrong, neutral = pictures.RIGHT, pictures.WRONG, pictures.NEUTRAL
    assert frames == [neutral, right, wrong, right, neutral, wrong, right, wrong, right]
