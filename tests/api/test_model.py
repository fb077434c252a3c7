"""Three lines of Python: fit, predict, edit, save and load; and runs that answer where their data are not."""

import concurrent.futures
import shutil

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

import rac_jax
from rac_jax import data, predict
from rac_jax.api.live import Live
from rac_jax.config import ConfigError
from rac_jax.data.decode import BadImage
from rac_jax.data.sets import digits
from rac_jax.memory import build, edit
from rac_jax.memory.manifest import BadMemory
from rac_jax.runtime import workdirs
from tests import tiny

KNOWN, NEW = 6, 8  # classes that are trained on: digits below this one; and the one that is added
SETTINGS = {"data__image_size": 32, "model__encoder": {"depth": 5}, "mesh.data": 1, "eval.batch_size": 16}


def split(name="train"):
    part = digits.load(0).split(name)
    return part.images.pixels, part.labels


def of_class(label, number, name="test"):
    pixels, labels = split(name)
    return pixels[labels == label][:number]


def small():
    """Images of the first classes, and their names."""
    pixels = np.concatenate([of_class(label, 12) for label in range(KNOWN)])
    return pixels, [f"the {label}" for label in np.repeat(np.arange(KNOWN), 12)]


@pytest.fixture(scope="module")
def fitted():
    return rac_jax.fit(*small(), train__epochs=2.0, **SETTINGS)


@pytest.fixture
def model(fitted, tmp_path):
    """A copy to edit."""
    fitted.save(tmp_path / "copy")
    return rac_jax.load(tmp_path / "copy", mesh__data=1)


def same(answers, expected):
    for answer, other in zip(answers, expected, strict=True):
        assert answer["label"] == other["label"]
        assert [n["image"] for n in answer["neighbours"]] == [n["image"] for n in other["neighbours"]]
        assert answer["probability"] == pytest.approx(other["probability"], rel=1e-5)


def test_fit_holds_test_images_out_and_evaluates_them(fitted):
    assert fitted.classes == tuple(f"the {label}" for label in range(KNOWN))
    assert fitted.memory.counts == {f"the {label}": 10 for label in range(KNOWN)}  # a fifth is held out
    accuracy = fitted.evaluate()
    assert set(accuracy) >= {"rac", "vote", "prototype"} and accuracy["rac"]["all"] > 0.5
    pixels, labels = split("train")
    known = labels < KNOWN
    named = [f"the {label}" for label in labels[known]]
    assert fitted.evaluate(pixels[known][:40], named[:40])["rac"]["all"] > 0.5


def test_one_answer_or_many_from_files_pictures_and_arrays(fitted, tmp_path):
    pixels = of_class(3, 4, "train")
    one = fitted.predict(pixels[0])
    assert one["label"] in fitted.classes and 0 < one["probability"] <= 1
    assert set(one["voices"]) == {"rac", "vote", "prototype"} and len(one["neighbours"]) == fitted.config.memory.k
    noise = np.random.default_rng(0).integers(256, size=(4, 32, 32, 3), dtype=np.uint8)
    known = fitted.predict(of_class(3, 9, "train"))
    assert max(a["familiarity"] for a in fitted.predict(noise)) < np.median([a["familiarity"] for a in known])
    Image.fromarray(pixels[0]).save(tmp_path / "a.png")
    same([fitted.predict(tmp_path / "a.png"), fitted.predict(Image.open(tmp_path / "a.png"))], [one, one])
    many = fitted.predict(pixels)
    assert [a["label"] for a in fitted.predict(iter(list(pixels)))] == [a["label"] for a in many]
    same(fitted.predict(str(tmp_path)), [one])  # a folder
    (tmp_path / "b.jpg").write_bytes(b"nothing")
    with pytest.raises(BadImage, match=r"b\.jpg: not a usable image"):
        fitted.predict(tmp_path / "b.jpg")
    assert "error" in fitted.predict([tmp_path / "b.jpg"])[0]


def test_one_unusable_image_among_several_has_an_error_and_the_others_answers(fitted, tmp_path):
    pixels = of_class(3, 2, "train")
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)).save(tmp_path / "a.png")
    (tmp_path / "a.png").write_bytes((tmp_path / "a.png").read_bytes()[:3000])
    with Image.open(tmp_path / "a.png") as cut:
        answers = fitted.predict([pixels[0], cut, None, b"GIF89a", pixels[1]])
    assert ["error" in answer for answer in answers] == [False, True, True, True, False]
    same([answers[0], answers[4]], fitted.predict(pixels))
    assert "a.png: not a usable image" in answers[1]["error"] and "of type NoneType" in answers[2]["error"]
    for wrong in (None, b"GIF89a", 3):
        with pytest.raises(BadImage, match=f"this one is of type {type(wrong).__name__}"):
            fitted.predict(wrong)


def test_arrays_of_jax_are_one_image_or_many(fitted):
    pixels = of_class(3, 2, "train")
    expected = fitted.predict(pixels)
    same([fitted.predict(jnp.asarray(pixels[0]))], expected[:1])
    same(fitted.predict(jnp.asarray(pixels)), expected)
    same(fitted.predict(list(map(jnp.asarray, pixels))), expected)
    assert [row["row"] for row in fitted.search(jnp.asarray(pixels[0]), 3)] == [
        row["row"] for row in fitted.search(pixels[0], 3)
    ]


def test_several_paths_may_be_an_array(fitted, tmp_path):
    pixels = of_class(3, 2, "train")
    for number, image in enumerate(pixels):
        Image.fromarray(image).save(tmp_path / f"{number}.png")
    same(fitted.predict(np.array([str(tmp_path / "0.png"), str(tmp_path / "1.png")])), fitted.predict(pixels))


def test_search_returns_the_nearest_rows_and_their_images(fitted):
    row = 25
    image = fitted.memory.image(row)
    found = fitted.search(image, k=3)
    assert len(found) == 3 and found[0]["row"] == row
    assert found[0]["similarity"] == pytest.approx(1, abs=1e-3)
    shown = {name: found[0][name] for name in ("label", "text", "source", "image")}
    assert fitted.memory.row(row) == shown and shown["source"] == "train"


def test_a_new_class_is_answered_after_add_and_not_after_disable(model):
    taught, asked = of_class(NEW, 12), of_class(NEW, 10, "train")
    before = model.predict(asked)
    assert model.memory.rows == 60
    model.add(taught, ["eight"] * len(taught), source="more")
    assert model.classes[-1] == "eight" and model.memory.counts["eight"] == 12 and model.memory.rows == 72
    answers = model.predict(asked)
    assert np.mean([a["voices"]["vote"]["label"] == "eight" for a in answers]) > 0.7
    assert any(a["label"] == "eight" for a in answers)
    near = answers[0]["neighbours"][0]
    assert near["source"] == "more" and near["label"] == "eight"
    assert model.memory.image(near["row"]).size == taught[0].shape[:2]
    model.disable("more")
    same(model.predict(asked), before)
    assert "eight" not in model.classes and model.memory.sources[1]["state"] == "disabled"
    model.enable("more")
    same(model.predict(asked), answers)
    reopened = rac_jax.load(model.workdir, mesh__data=1)
    same(reopened.predict(asked), answers)  # it is on the disk
    with pytest.raises(BadMemory, match="there is a source 'more' already"):
        model.add(taught, ["eight"] * len(taught), source="more")
    model.remove("more")
    same(model.predict(asked), before)
    with pytest.raises(BadMemory, match="'train' is the only source that is enabled"):
        model.disable("train")
    same(model.predict(asked), before)


def test_nobody_else_edits_while_a_source_is_added(model, monkeypatch):
    free, add, reopen = [], build.add, model.live.reopen

    def tried():
        """Whether another thread could begin an edit now."""
        with concurrent.futures.ThreadPoolExecutor(1) as other:
            free.append(other.submit(model.live.editing.acquire, blocking=False).result())

    monkeypatch.setattr(build, "add", lambda *given, **named: (tried(), add(*given, **named)))
    monkeypatch.setattr(model.live, "reopen", lambda: (tried(), reopen()))
    model.add(of_class(NEW, 2), ["eight"] * 2, source="more")
    assert free == [False, False] and model.memory.counts["eight"] == 2


def test_sets_of_labels_grow_with_the_coverage_and_follow_the_memory(model, caplog):
    images = of_class(2, 6, "train")
    small, large = (model.predict(images, coverage=level) for level in (0.5, 0.9))
    for one, other in zip(small, large, strict=True):
        assert one["labels"][0] == one["label"] and set(one["labels"]) <= set(other["labels"]) <= set(model.classes)
    assert sum(len(a["labels"]) for a in small) < sum(len(a["labels"]) for a in large)
    assert set(model.predict(images[0], coverage=0.999)["labels"]) == set(model.classes)  # 60 images cannot promise it
    assert "another memory" not in caplog.text
    model.add(of_class(NEW, 12), ["eight"] * 12, source="more")
    asked = model.predict(of_class(NEW, 10, "train"), coverage=0.9)
    assert caplog.text.count("were calibrated with another memory") == 1
    assert np.mean(["eight" in a["labels"] for a in asked]) > 0.5
    (model.workdir / "coverage.json").unlink()
    with pytest.raises(ValueError, match=r"no coverage\.json for step \d+: sets of labels need held-out images"):
        model.predict(images, coverage=0.9)


def test_evaluation_counts_how_often_sets_hold_the_truth(model):
    images, names = of_class(2, 8, "train"), ["the 2"] * 8
    model.add(of_class(NEW, 12), ["eight"] * 12, source="more")
    images = np.concatenate([images, of_class(NEW, 4, "train")])
    found = model.evaluate(images, [*names, *["eight"] * 4])["coverage"]
    assert list(found) == ["0.8", "0.9", "0.95"]
    sets = [set(answer["labels"]) for answer in model.predict(images, coverage=0.9)]
    hit = ["the 2" in labels for labels in sets[:8]] + ["eight" in labels for labels in sets[8:]]
    assert found["0.9"] == {
        "all": {"covered": pytest.approx(np.mean(hit)), "labels": pytest.approx(np.mean([len(s) for s in sets]))},
        "few": {
            "covered": pytest.approx(np.mean(hit[:8])),
            "labels": pytest.approx(np.mean([len(s) for s in sets[:8]])),
        },
        "new": {
            "covered": pytest.approx(np.mean(hit[8:])),
            "labels": pytest.approx(np.mean([len(s) for s in sets[8:]])),
        },
    }
    (model.workdir / "coverage.json").unlink()
    assert "coverage" not in model.evaluate(images[:8], names)


def test_rows_are_shown_by_thumbnails_where_the_images_are_gone(model):
    shutil.rmtree(model.workdir / "images")
    shown = model.memory.image(25)
    assert shown.size == (32, 32) and model.memory.thumbnail(25).startswith(b"\xff\xd8\xff")
    assert model.search(shown, k=1)[0]["row"] == 25


def test_folders_and_tables_are_added_and_evaluated(model, tmp_path):
    for name, label in ("eight", NEW), ("the 1", 1):
        (tmp_path / "more" / name).mkdir(parents=True)
        for number, pixels in enumerate(of_class(label, 5)):
            Image.fromarray(pixels).save(tmp_path / "more" / name / f"{number}.png")
    model.add(tmp_path / "more")
    assert model.memory.sources[1]["name"] == "more"
    assert (model.memory.counts["eight"], model.memory.counts["the 1"]) == (5, 15)
    accuracy = model.evaluate(tmp_path / "more")  # the images are in the memory now
    assert accuracy["vote"]["all"] > 0.8 and accuracy["vote"]["new"] > 0.5
    lines = [f'{{"path": "more/eight/{n}.png", "label": "nine"}}' for n in range(5)]
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    model.add(tmp_path / "t.jsonl", source="renamed")
    assert model.memory.counts["nine"] == 5


def test_a_saved_run_answers_where_nothing_of_the_original_is(fitted, tmp_path, monkeypatch):
    images = of_class(3, 4, "train")
    expected = fitted.predict(images)
    fitted.save(tmp_path / "saved", with_encoder=True)
    moved = (tmp_path / "saved").rename(tmp_path / "elsewhere")
    monkeypatch.setattr(data, "load", None)
    monkeypatch.setattr("rac_jax.weights.catalogue._in_package", lambda entry: None)  # E's package is not installed
    hidden = fitted.workdir.rename(fitted.workdir.with_name("hidden"))
    try:
        for path in (moved, *moved.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        loaded = rac_jax.load(moved, mesh__data=1)
        same(loaded.predict(images), expected)
        assert loaded.memory.image(0).size == (32, 32) or loaded.memory.image(0) is not None
    finally:
        hidden.rename(fitted.workdir)
        for path in (moved, *moved.rglob("*")):
            path.chmod(0o755)


def test_a_saved_or_copied_run_is_evaluated_where_the_original_is_gone(fitted, tmp_path):
    expected = fitted.evaluate()
    fitted.save(tmp_path / "first")
    assert workdirs.read_config(tmp_path / "first").data.name == "table:images/train/table.jsonl"
    shutil.copytree(fitted.workdir, tmp_path / "copied")
    hidden = fitted.workdir.rename(fitted.workdir.with_name("hidden"))
    try:
        rac_jax.load(tmp_path / "first", mesh__data=1).save(tmp_path / "second")
        shutil.rmtree(tmp_path / "first")
        for name in ("second", "copied"):
            accuracy = rac_jax.load(tmp_path / name, mesh__data=1).evaluate()
            assert accuracy["rac"] == pytest.approx(expected["rac"])
    finally:
        hidden.rename(fitted.workdir)


def test_a_run_of_the_command_line_is_loaded(trained, tmp_path):
    workdir = shutil.copytree(trained, tmp_path / "run")
    model = rac_jax.load(workdir)
    image = data.load(tiny.config()).split("test").images[0]
    assert set(model.predict(image)["voices"]) == {"rac", "base", "text"}
    with pytest.raises(ConfigError, match=r"memory\.k: 30 there, 3 now"):
        rac_jax.load(workdir, memory__k=3)


@pytest.mark.parametrize("kind", ["folder", "table"])
def test_class_folders_and_tables_are_fitted(tmp_path, kind):
    lines = ["path,label"]
    for label in range(3):
        (tmp_path / "photos" / f"the {label}").mkdir(parents=True)
        for number, pixels in enumerate(of_class(label, 5)):
            Image.fromarray(pixels).save(tmp_path / "photos" / f"the {label}" / f"{number}.png")
            lines.append(f"photos/the {label}/{number}.png,the {label}")
    (tmp_path / "table.csv").write_text("\n".join(lines) + "\n")
    source = tmp_path / ("photos" if kind == "folder" else "table.csv")
    quick = {"train.epochs": 1.0, "train.calibrate_sets": False, "train.calibrate_new": False}
    model = rac_jax.fit(source, data__test_share=0.2, memory={"k": 3}, **quick, **SETTINGS)
    assert model.memory.counts == {f"the {label}": 4 for label in range(3)} and model.config.memory.k == 3
    assert model.predict(of_class(1, 1)[0])["neighbours"][0]["label"] == "the 1"
    assert set(model.evaluate()["rac"]) >= {"all", "few"}


def test_one_image_of_each_class_is_enough():
    images = [of_class(label, 1)[0] for label in range(3)]
    model = rac_jax.fit(images, ["a", "b", "c"], train__epochs=1.0, **SETTINGS)
    assert model.memory.counts == {"a": 1, "b": 1, "c": 1} and model.config.memory.k == 1
    assert [answer["label"] for answer in model.predict(images)] == ["a", "b", "c"]
    with pytest.raises(ValueError, match="no images were held out for evaluation"):
        model.evaluate()


def test_importing_the_package_does_not_import_jax():
    import subprocess
    import sys

    program = "import sys, rac_jax; assert 'jax' not in sys.modules; rac_jax.fit; assert 'jax' in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)


def test_an_exported_run_has_a_card(fitted, tmp_path):
    fitted.save(tmp_path / "saved")
    text = (tmp_path / "saved" / "README.md").read_text()
    assert "- classes: 6, with 10 to 10 training images each" in text
    assert "- E: `efficientnet_lite0` (efficientnet_lite0:imagenet, not included" in text
    assert 'rac_jax.load("this/folder")' in text
    with pytest.raises(FileExistsError, match="saved exists already; name a new folder"):
        fitted.save(tmp_path / "saved")
    assert predict.here(tmp_path / "saved").weights_dir == ""


def test_labels_and_sources_that_are_no_texts_are_named_as_they_are_written(model):
    first, second = of_class(NEW, 2)
    row = model.teach(first, NEW, text="an eight", source=7)
    assert model.memory.row(row)["label"] == "8" and model.memory.row(row)["source"] == "7"
    row = model.teach(second, 0, text="zero")
    assert model.memory.row(row)["label"] == "0"
    again = rac_jax.load(model.workdir, mesh__data=1)
    assert again.classes[-2:] == ("8", "0") and again.memory.counts["8"] == 1


def test_one_image_has_one_label_and_several_have_a_list(model, tmp_path):
    one, *several = of_class(NEW, 3)
    Image.fromarray(one).save(tmp_path / "one.png")
    model.add(tmp_path / "one.png", "eight", source="a")
    model.add(str(tmp_path / "one.png"), ["nine"], source="b")
    model.add(several[0], 10, source="c")
    assert model.classes[KNOWN:] == ("eight", "nine", "10") and model.memory.rows == 63
    for refused in ("cat", 3):
        with pytest.raises(ValueError, match=f"labels is {refused!r}; several images need a list"):
            model.add(several, refused, source="d")
    with pytest.raises(ValueError, match="labels go with images; a folder or a table has its own"):
        model.add(tmp_path, ["x"], source="d")
    with pytest.raises(ValueError, match="several images need a list"):
        rac_jax.fit(of_class(0, 3), "abc", **SETTINGS)
    assert model.memory.rows == 63


def test_a_source_has_the_name_of_the_folder_one_is_in(model, tmp_path, monkeypatch):
    (tmp_path / "mine" / "eight").mkdir(parents=True)
    Image.fromarray(of_class(NEW, 1)[0]).save(tmp_path / "mine" / "eight" / "1.png")
    monkeypatch.chdir(tmp_path / "mine")
    model.add(".")
    assert model.memory.sources[-1]["name"] == "mine"


def test_a_fit_can_be_repeated_in_its_folder_and_labels_may_be_numbers_from_one(tmp_path):
    pixels, labels = np.concatenate([of_class(label, 3) for label in (1, 2)]), np.repeat([1, 2], 3)
    settings = {"workdir": tmp_path / "w", "train__epochs": 0.0, **SETTINGS}
    first, again = (rac_jax.fit(pixels, labels, **settings) for _ in range(2))
    assert first.classes == again.classes == ("1", "2") and again.memory.rows == first.memory.rows
    with pytest.raises(ValueError, match="holds a run on other images; use another workdir, or those images"):
        rac_jax.fit(255 - pixels, labels, **settings)
    assert [path.name for path in (tmp_path / "w" / "images").iterdir()] == ["train"]
    same(rac_jax.load(tmp_path / "w", mesh__data=1).predict(pixels[:1]), first.predict(pixels[:1]))


def test_a_single_row_leaves_familiarity_out_and_without_rows_there_are_no_neighbours(model):
    image = of_class(NEW, 1)[0]
    model.teach(image, "eight")
    assert 0 < model.predict(image)["familiarity"] < 1
    model.disable("train")
    answer = model.predict(image)
    assert "familiarity" not in answer and len(answer["neighbours"]) == 1
    text = predict.describe({"image": "a.png", **answer}, 3)
    assert "1 of 1" in text and "unlike" not in text
    with edit.editing(model.workdir / "memory") as editor:  # as another command does
        editor.set_state("taught", "disabled")
    assert model.live.refresh()
    answer = model.predict(image)
    assert "familiarity" not in answer and answer["neighbours"] == []


def test_a_memory_that_could_not_be_read_is_read_again(model, monkeypatch):
    with edit.editing(model.workdir / "memory") as editor:
        editor.rename("train", "first")
    with monkeypatch.context() as patch:
        patch.setattr(build, "opened", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model.live.refresh()
    assert model.live.refresh() and model.memory.sources[0]["name"] == "first"
    assert not model.live.refresh()


def test_an_edit_while_a_run_is_loaded_is_noticed(model):
    opened = model.live.answering
    with edit.editing(model.workdir / "memory") as editor:
        editor.rename("train", "first")
    live = Live(opened)
    assert live.refresh() and live.answering.run.retriever.memory.manifest.sources[0].name == "first"
    assert not live.refresh() and not Live(live.answering).refresh()
