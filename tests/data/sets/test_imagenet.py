"""ImageNet-LT's lists in miniature, with validation images in class folders or all in one."""

from pathlib import Path

import pytest
from PIL import Image

from rac_jax.data.missing import MissingData
from rac_jax.data.sets import imagenet


@pytest.fixture(params=["val/n02/ILSVRC2012_val_1.JPEG", "val/ILSVRC2012_val_1.JPEG"])
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(imagenet, "CLASSES", 2)
    monkeypatch.setattr(imagenet, "IMAGES", {"train": 2, "val": 1, "test": 1})
    (tmp_path / "ImageNet_LT_train.txt").write_text("train/n01/n01_1.JPEG 0\ntrain/n02/n02_1.JPEG 1\n")
    (tmp_path / "ImageNet_LT_val.txt").write_text("train/n01/n01_2.JPEG 0\n")
    (tmp_path / "ImageNet_LT_test.txt").write_text("val/n02/ILSVRC2012_val_1.JPEG 1\n")
    (tmp_path / "LOC_synset_mapping.txt").write_text("n01 tench, Tinca tinca\nn02 great white shark, white shark\n")
    for path in ("train/n01/n01_1.JPEG", "train/n02/n02_1.JPEG", "train/n01/n01_2.JPEG", request.param):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(tmp_path / path)
    return tmp_path


def test_lists_and_names(root: Path):
    found = imagenet.load(str(root))
    assert found.class_names == ("n01", "n02")
    assert found.class_texts == ("tench", "great white shark")
    assert found.split("test").labels.tolist() == [1]
    assert found.split("test").images[0].shape == (4, 4, 3)


def test_what_is_missing_is_named(root: Path):
    (root / "LOC_synset_mapping.txt").write_text("n01 tench\n")
    with pytest.raises(ValueError, match="no name for n02"):
        imagenet.load(str(root))
    (root / "LOC_synset_mapping.txt").unlink()
    with pytest.raises(MissingData, match=r"classnames.txt or .*synset_words.txt[\s\S]*Kaggle"):
        imagenet.load(str(root))
