"""The rows of tables that depend on the config, on its variants or on an external memory."""

import dataclasses
import json

import numpy as np
import pytest

from configs import cifar100_lt, demo, digits
from rac_jax import rules
from rac_jax.data.dataset import ArrayImages, Dataset, Split
from rac_jax.data.files import FileImages
from rac_jax.memory import build, edit
from rac_jax.reproduce import runs
from rac_jax.reproduce.experiment import Experiment
from rac_jax.reproduce.tables import TABLES, asked_for, by_variant, external, fitting
from tests.memory.conftest import keys as keys
from tests.memory.conftest import make


def test_rows_are_of_the_data_set_and_of_the_voices():
    of_cifar = fitting(TABLES["imbalance"], cifar100_lt.get_config("instant"))
    assert [row.fields["data.imbalance"] for row in of_cifar.rows] == [1, 1, 10, 10, 50, 50, 100, 100]
    assert [row.name for row in of_cifar.rows[:2]] == ["imbalance 1: classifier alone", "imbalance 1: with the memory"]
    assert of_cifar.rows[1].against == of_cifar.rows[0].name
    assert not fitting(TABLES["imbalance"], digits.get_config()).rows
    with_votes, without = (fitting(TABLES["noise"], demo.get_config(variant)).rows for variant in ("", "rac"))
    reliable = [row for row in with_votes if row.name.endswith("reliability")]
    assert len(reliable) == 7 and len(with_votes) - len(without) == 7


@pytest.mark.parametrize(
    ("rows", "without", "asked"),
    [
        ([], [], ["paper", "sqrt", "learned", "sum"]),
        (["sum", "paper"], [], ["paper", "sum"]),
        ([], ["paper", "minutes"], ["sqrt", "learned", "sum"]),
        (["sum", "paper"], ["paper"], ["sum"]),
    ],
)
def test_rows_are_chosen_and_left_out_by_name(rows, without, asked):
    assert [row.name for row in asked_for(TABLES["fusion"], rows, without)] == asked


@pytest.mark.parametrize(("variant", "base"), [("instant", "keys"), ("rac", "efficientnet_lite0")])
def test_a_classifier_without_the_memory_reads_keys_where_there_is_no_b(tmp_path, variant, base):
    experiment = Experiment(tmp_path, [], demo.get_config(variant), "test")
    row = fitting(TABLES["noise"], experiment.config).rows[0]
    config = experiment.run_config(row, 0)
    assert config.model.voices == "base" and config.model.base.name == base
    rules.validate(config, devices=1)


CONFIGS = {
    "demo": demo.get_config(),
    "demo:finetune": demo.get_config("finetune"),
    "demo:instant": demo.get_config("instant"),
    "demo:rac": demo.get_config("rac"),
    "cifar100_lt:small": cifar100_lt.get_config("small"),
    "cifar100_lt:plus": cifar100_lt.get_config("plus"),
    "cifar100_lt:plus+clip": cifar100_lt.get_config("plus+clip"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_every_row_of_every_table_is_valid(tmp_path, name):
    """Before, B alone was to be trained on views, and to start from class means, which need the memory."""
    experiment = Experiment(tmp_path, [], CONFIGS[name], "test")
    for table in TABLES.values():
        for row in fitting(table, experiment.config).rows:
            rules.validate(experiment.run_config(row, 0), devices=1)


def test_b_alone_sees_images_and_another_b_is_not_frozen(tmp_path):
    experiment = Experiment(tmp_path, [], demo.get_config(), "test")
    rows = {row.name: experiment.run_config(row, 0) for row in fitting(TABLES["main"], experiment.config).rows}
    alone, scratch, together = rows["LDAM"], rows["ResNet-50 from scratch, CE"], rows["RAC"]
    assert alone.train.views == 0 and alone.model.head_start == "random" and alone.optim.frozen
    assert together.train.views == 4 and together.model.head_start == "means"
    assert scratch.optim.frozen == "" and scratch.train.views == 0
    unchanged = fitting(TABLES["main"], demo.get_config("rac")).rows[0]
    assert unchanged.fields == TABLES["main"].rows[0].fields  # so that complete runs are found again


def test_b_alone_has_the_views_and_the_start_of_the_other_rows(tmp_path):
    """Before, the row was trained on images from a random head, and compared with rows that start from class means."""
    config = demo.get_config()
    experiment, table = Experiment(tmp_path, [], config, "test"), fitting(TABLES["main"], config)
    row = next(row for row in table.rows if row.name == "CE")
    ran = experiment.run_config(row, 0)
    assert (ran.model.voices, ran.model.fusion, ran.loss.name) == ("base+vote", "sum", "ce")
    assert (ran.train.views, ran.model.head_start) == (4, "means")
    path = experiment.outcome(table, row, 0)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"voices": {"fused": {"all": 0.5}, "base": {"all": 0.4}, "vote": {"all": 0.3}}}))
    assert runs.known(experiment, table, row, 0).figures == {"all": 40.0}
    noisy = fitting(TABLES["noise"], config).rows[0]
    assert noisy.voice == "" and experiment.run_config(noisy, 0).model.voices == "base"
    for variant in ("rac", "instant"):  # where B does not start from E, or there is none
        assert {row.voice for row in fitting(TABLES["main"], demo.get_config(variant)).rows} == {""}


def test_variants_of_the_config_file_are_rows(tmp_path):
    flags = ["--config=configs/demo.py:vote", "--config.train.epochs=3.0"]
    config = demo.get_config("vote")
    config.train.epochs = 3.0
    experiment = Experiment(tmp_path, flags, config, "test")
    table = by_variant(TABLES["minutes"], experiment, [])
    assert {row.variant for row in table.rows} == set(demo.VARIANTS)
    table = by_variant(TABLES["minutes"], experiment, ["", "base"])
    assert [row.name for row in table.rows] == ["default", ":base"]
    default, base = (experiment.of(row) for row in table.rows)
    assert default.flags == ["--config=configs/demo.py", "--config.train.epochs=3.0"]
    assert base.config.name == "demo_base" and base.config.model.voices == "base" and base.config.train.epochs == 3
    assert default.workdir(table, table.rows[0], 0) != base.workdir(table, table.rows[1], 0)
    with pytest.raises(ValueError, match=r"--variants: configs/demo\.py has no variant 'nothing'; it has .*vote, "):
        by_variant(TABLES["minutes"], experiment, ["nothing"])


def images_of(numbers):
    """A data set of images of one colour each."""
    pixels = np.broadcast_to(np.asarray(numbers)[:, None, None, None], (len(numbers), 2, 2, 3)).astype(np.uint8)
    train = Split("train", ArrayImages("train", pixels), np.zeros(len(numbers), np.int32))
    return Dataset("made", ("a",), ("a",), {"train": train})


def test_an_external_memory_takes_the_place_of_the_training_images(tmp_path, keys):
    folder = make(tmp_path / "m", keys).folder
    with edit.editing(folder) as editor:
        editor.rename(build.TRAIN, "other")
    table = external(TABLES["content"], folder, [images_of([1, 2])])
    experiment = Experiment(tmp_path / "out", [], digits.get_config(), "test")
    own, *others = (experiment.fields(table, row, 0) for row in table.rows)
    assert own["memory.dir"].startswith(str(tmp_path / "out" / "memory"))
    assert {fields["memory.dir"] for fields in others} == {str(folder)}
    assert len({experiment.workdir(table, row, 0) for row in table.rows}) == len(table.rows)


def test_training_images_in_an_external_memory_are_refused(tmp_path, keys):
    memory = make(tmp_path / "m", keys)
    for number, name in enumerate(memory.images.take(np.arange(len(memory)))):
        (tmp_path / "files" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "files" / name).write_bytes(b"%d" % number)
    with edit.editing(memory.folder) as editor:
        (source,) = editor.manifest.sources
        editor.commit(sources=(dataclasses.replace(source, root=str(tmp_path / "files")),))
    paths = np.array([b"other/0.png", b"other/1.png"])
    (tmp_path / "other").mkdir()
    for path, written in zip(paths, (b"3", b"nothing of it"), strict=True):
        (tmp_path / path.decode()).write_bytes(written)
    train = Split("train", FileImages(str(tmp_path), paths), np.zeros(2, np.int32))
    with pytest.raises(ValueError, match=r"holds 1 of the training images, as \S+"):
        of_seeds = [images_of([1, 2]), Dataset("made", ("a",), ("a",), {"train": train})]
        external(TABLES["content"], memory.folder, of_seeds)


def test_a_memory_of_another_training_split_is_used_after_its_source_is_renamed(tmp_path, keys):
    """Before, every row of the table failed, because a run takes the source `train` for its own training images."""
    folder = make(tmp_path / "m", keys).folder
    with pytest.raises(ValueError, match=r"rename it first: .*rename --memory=\S+ --source=train --to=other"):
        external(TABLES["content"], folder, [images_of([1, 2])])
    with edit.editing(folder) as editor:
        editor.rename(build.TRAIN, "other")
    assert external(TABLES["content"], folder, [images_of([1, 2])]).reference == "all rows"


def test_a_memory_that_the_user_names_is_used_and_its_content_counts(tmp_path, keys):
    """Before, every row got a memory of its own, whatever the user had named."""
    config = digits.get_config()
    config.memory.dir = str(tmp_path / "m")
    experiment, table = Experiment(tmp_path / "out", [], config, "test"), TABLES["main"]
    row = table.rows[0]
    before = experiment.workdir(table, row, 0)
    assert experiment.fields(table, row, 0)["memory.dir"] == str(tmp_path / "m")
    make(tmp_path / "m", keys)
    assert experiment.workdir(table, row, 0) != before  # other rows are in it than the training images
