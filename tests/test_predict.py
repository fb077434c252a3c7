"""A run that was trained for a few steps answers for files, good and bad."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image

from rac_jax import data, evaluate, predict
from rac_jax.data.dataset import Dataset
from rac_jax.data.files import file_split
from rac_jax.runtime import workdirs
from tests import tiny


@pytest.fixture(scope="module")
def run(trained):
    """The run's folder, and its parts, parameters and statistics as they are restored from it."""
    restored = evaluate.restore(workdirs.read_config(trained), trained, None, split="test")
    assert restored[3] == 20
    return trained, restored[:3]


@pytest.fixture
def digits(tmp_path):
    """The first three test images as files."""
    images = data.load(tiny.config()).split("test").images
    paths = [tmp_path / f"{number}.png" for number in range(3)]
    for number, path in enumerate(paths):
        Image.fromarray(images[number]).save(path)
    return paths


def test_the_config_of_a_run_is_read_back(run):
    expected = tiny.config()
    expected.train.steps, expected.eval.show = 20, 1
    assert workdirs.read_config(run[0]).to_dict() == expected.to_dict()


def test_a_mistyped_memory_is_an_error_and_is_not_built(run, tmp_path):
    config = workdirs.read_config(run[0])
    config.memory.dir = str(tmp_path / "typo")
    with pytest.raises(
        FileNotFoundError, match=r"there is no memory in .*typo; check --memory or --config\.memory\.dir"
    ):
        evaluate.restore(config, run[0], None)
    assert not (tmp_path / "typo").exists()


def test_answers_are_those_of_the_evaluation(run, digits):
    _, restored = run
    answers = list(predict.predict(*restored, digits))
    _, expected = evaluate.answers(*restored, "test")
    names, memory = restored[0].dataset.class_names, restored[0].retriever.memory
    for place, answer in enumerate(answers):
        assert answer["image"] == str(digits[place])
        assert list(answer["voices"]) == list(expected.votes) == ["rac", "base", "text"]
        for branch, vote in answer["voices"].items():
            assert vote["label"] == names[expected.votes[branch].label[place]]
            assert vote["probability"] == pytest.approx(expected.votes[branch].probability[place], rel=1e-4)
        assert (answer["label"], answer["probability"]) == tuple(answer["voices"]["rac"].values())
        own_text = restored[0].dataset.class_texts[names.index(answer["label"])]
        texts = memory.texts.take(memory.text_of[expected.rows[place]])
        assert [n["text"] for n in answer["neighbours"]] == texts
        assert [n["supports"] for n in answer["neighbours"]] == [text == own_text for text in texts]
        assert answer["neighbours"][0]["source"] == "train"


def test_answers_need_neither_the_data_nor_the_files_of_b_and_t(run, digits, tmp_path, monkeypatch):
    """Nor the number of devices of training, nor its paths."""
    workdir = shutil.copytree(run[0], tmp_path / "moved")
    changed = json.loads((workdir / "config.json").read_text())
    changed["model"]["base"]["weights"], changed["model"]["text"]["weights"] = "vit_b16:augreg_in21k", "clip_b16"
    changed["weights_dir"], changed["memory"]["dir"] = str(tmp_path), str(tmp_path / "gone")
    changed["mesh"]["data"] = 64
    (workdir / "config.json").write_text(json.dumps(changed))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(data, "load", None)  # it must not be called
    config = predict.here(workdir)
    restored = evaluate.restore(config, workdir, None)
    assert not restored[0].dataset.splits
    for answer, expected in zip(predict.predict(*restored[:3], digits), predict.predict(*run[1], digits), strict=True):
        assert answer["label"] == expected["label"] and answer["neighbours"] == expected["neighbours"]
        assert answer["probability"] == pytest.approx(expected["probability"], rel=1e-5)


def test_pictures_and_arrays_are_answered_as_files_are(run, digits):
    pictures = [Image.open(digits[0]), np.asarray(Image.open(digits[1])), digits[2]]
    answers = list(predict.predict(*run[1], iter(pictures)))
    expected = list(predict.predict(*run[1], digits))
    assert [answer["voices"] for answer in answers] == [answer["voices"] for answer in expected]
    (wrong,) = predict.predict(*run[1], [np.zeros((4, 5, 2), np.uint8)])
    assert "an image is an array [H, W] or [H, W, 3], and this one is [4, 5, 2]" in wrong["error"]


def test_a_large_photograph_is_decoded_as_evaluation_decodes_it(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (300, 400, 3), dtype=np.uint8)
    Image.fromarray(pixels).resize((400, 300)).save(tmp_path / "large.jpg", quality=90)
    split = data.sized(Dataset("d", ("a",), ("a",), {"test": file_split("test", tmp_path, ["large.jpg"], [0])}), 32)
    expected = split.split("test").images[0]
    assert expected.shape == (75, 100, 3)  # a quarter of each side
    np.testing.assert_array_equal(predict._read(tmp_path / "large.jpg", 32), expected)


def test_broken_files_are_skipped_and_the_others_answered(run, digits, tmp_path):
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8\xff nothing")
    paths = [digits[0], tmp_path / "broken.jpg", tmp_path / "gone.png", digits[1]]
    answers = list(predict.predict(*run[1], paths))
    assert ["error" in answer for answer in answers] == [False, True, True, False]
    assert "broken.jpg: not a usable image" in answers[1]["error"]
    assert "gone.png: cannot be read" in answers[2]["error"]
    assert json.loads(json.dumps(answers[3]))["image"] == str(digits[1])


def test_folders_are_searched_in_order(digits, tmp_path):
    (tmp_path / "notes.txt").write_text("no image")
    assert list(predict.images_in([tmp_path])) == digits
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"no images in .*empty"):
        list(predict.images_in([tmp_path / "empty"]))


def test_images_may_be_in_the_folder_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for name in ("x.png", "~nobody.png"):
        Image.new("RGB", (4, 5), (7, 8, 9)).save(tmp_path / name)
        assert predict.read(f"~/{name}", 8).shape == (5, 4, 3)
    assert predict.read("~nobody.png", 8).shape == (5, 4, 3)
    several, single = predict.sorted_out("~")
    assert not single and list(several) == [tmp_path / "x.png", tmp_path / "~nobody.png"]


def test_an_answer_for_people():
    neighbours = [
        {"text": "two", "similarity": 0.9, "source": "train", "image": "a.png", "supports": True},
        {"text": "six", "similarity": 0.8, "source": "more", "image": "b.png", "supports": False},
    ]
    votes = {"rac": {"label": "two", "probability": 0.75}, "base": {"label": "six", "probability": 0.5}}
    answer = {"image": "x.png", "label": "two", "probability": 0.75, "voices": votes, "neighbours": neighbours}
    answer["familiarity"] = 0.3
    assert predict.describe(answer, 1).splitlines() == [
        "x.png: two (75.0 %)",
        "  votes: rac two 75.0 %, base six 50.0 %",
        "  neighbours: 1 of 2 have this label",
        "  + 0.900  two  (train: a.png)",
    ]


def test_evaluation_draws_its_pictures(run):
    folder = run[0] / "report" / "test"
    names = {path.stem for path in folder.iterdir()}
    assert {"by_class", "by_frequency", "confusion", "calibration", "random_0", "worst_0"} <= names
    assert np.asarray(Image.open(folder / "random_0.png")).std() > 10
