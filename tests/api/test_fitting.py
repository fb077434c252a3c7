"""What `fit` is given: config fields by name, and what is refused; and the types of what a model returns."""

import tomllib
import typing
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import rac_jax
from rac_jax import config as configs
from rac_jax.api import fitting
from rac_jax.config import ConfigError
from rac_jax.start import tuning


def test_every_config_field_can_be_given_by_both_of_its_names():
    defaults = fitting.default_config()
    for name in configs.names(defaults):
        value = configs.field(defaults, name)
        for spelling in (name, name.replace(".", "__")):
            config = fitting.default_config()
            assert fitting.set_fields(config, {spelling: value}) == {name}
            assert configs.field(config, name) == value


def test_fields_that_do_not_exist_or_have_another_type_are_named():
    with pytest.raises(ConfigError, match=r"there is no field memory\.kk; similar fields: memory\.k"):
        rac_jax.fit("digits", memory__kk=3)
    with pytest.raises(ConfigError, match=r"config\.memory\.k is 'many'; it must be of type int"):
        rac_jax.fit("digits", memory={"k": "many"})
    with pytest.raises(ValueError, match="images need labels"):
        rac_jax.fit(np.zeros((2, 8, 8, 3), np.uint8))


def test_fields_that_would_be_ignored_are_refused(tmp_path):
    (tmp_path / "a").mkdir()
    images, labels = np.zeros((2, 8, 8, 3), np.uint8), ["a", "b"]
    with pytest.raises(ConfigError, match=r"config\.data\.name is what fit is given first, digits; leave it out"):
        rac_jax.fit("digits", data__name="cifar10_lt")
    with pytest.raises(ConfigError, match=r"config\.data\.root is what fit is given first, images; leave it out"):
        rac_jax.fit(images, labels, data={"root": str(tmp_path)})
    with pytest.raises(ConfigError, match=r"config\.data\.root is what fit is given first, .*; leave it out"):
        rac_jax.fit(tmp_path, data__root="elsewhere")
    with pytest.raises(FileNotFoundError, match="elsewhere"):  # where a known data set lies
        rac_jax.fit("cifar10_lt", data__root=str(tmp_path / "elsewhere"))


def test_another_model_needs_its_weights():
    wanted = r"config\.model\.encoder\.name is 'resnet50': give config\.model\.encoder\.weights too"
    with pytest.raises(ConfigError, match=rf"{wanted} \('resnet50:a1_in1k', or '' for random\)"):
        rac_jax.fit("digits", model__encoder__name="resnet50")
    for fields in (
        {"model.encoder.name": "efficientnet_lite0"},
        {"model.encoder": {"name": "resnet50", "weights": ""}},
        {"model.base.name": "resnet50"},
    ):
        config = fitting.default_config()
        fitting.check(config, fitting.set_fields(config, fields), "digits", None)


def test_a_few_photos_are_enough_to_train_e(tmp_path):
    for number in range(12):
        (tmp_path / "ab"[number % 2]).mkdir(exist_ok=True)
        Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / "ab"[number % 2] / f"{number}.png")
    for fields, sharpness in (({}, configs.TUNED_SHARPNESS), ({"model.sharpness": 1.0}, 1.0)):
        config = fitting.default_config()
        given = fitting.set_fields(config, {"tune.share": 0.5, **fields})
        config.data.name, config.data.root = "folder", str(tmp_path)
        fitting.adapt(config, given)
        assert (config.memory.k, config.model.sharpness) == (5, sharpness)
        assert tuning.checked_stage(config).memory.k == 5


def test_each_image_has_a_label(tmp_path):
    images = np.zeros((3, 4, 4, 3), np.uint8)
    assert fitting.write_images(iter(images), iter("abc"), tmp_path / "a").read_text().count("path") == 3
    with pytest.raises(ValueError, match=r"^there are more images than labels \(2\); give a label for each image$"):
        fitting.write_images(iter(images), iter("ab"), tmp_path / "b")
    with pytest.raises(ValueError, match=r"^there are 3 images and 4 labels; give a label for each image$"):
        fitting.write_images(images, ["a", "b", "c", "d"], tmp_path / "c")
    for missing in (None, float("nan"), np.float32("nan")):
        with pytest.raises(ValueError, match=rf"^labels\[1\] is {missing}; give each image a label, or leave it out"):
            fitting.write_images(images, ["a", missing, "c"], tmp_path / "d")


def test_images_may_be_in_the_folder_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    Image.new("RGB", (4, 4)).save(tmp_path / "x.png")
    fitting.write_images(["~/x.png"], ["a"], tmp_path / "a")
    assert (tmp_path / "a/000000.png").read_bytes() == (tmp_path / "x.png").read_bytes()
    with pytest.raises(ValueError, match="labels go with images; a folder or a table has its own"):
        fitting.write_images("~", ["a"], tmp_path / "b")


def test_types_tell_one_answer_from_many():
    returned = {}
    for overload in typing.get_overloads(rac_jax.Model.predict):
        hints = typing.get_type_hints(overload)
        returned |= dict.fromkeys(typing.get_args(hints["images"]) or [hints["images"]], hints["return"])
    answer = dict[str, typing.Any]
    assert returned[Image.Image] == answer and list[answer] in returned.values()
    assert returned[str] == returned[np.ndarray] == typing.Any  # perhaps a folder, perhaps several images
    assert (Path(rac_jax.__file__).parent / "py.typed").is_file()
    project = tomllib.loads((Path(rac_jax.__file__).parents[1] / "pyproject.toml").read_text())
    assert "py.typed" in project["tool"]["setuptools"]["package-data"]["rac_jax"]
