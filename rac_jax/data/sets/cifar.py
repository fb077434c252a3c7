"""CIFAR-10-LT and CIFAR-100-LT: CIFAR made long-tailed by the exponential rule, any imbalance factor.

From the published binary files, from class folders, or from TFDS, whichever is under the root.
"""

import dataclasses
from pathlib import Path

import numpy as np

from rac_jax.data import long_tail
from rac_jax.data.dataset import ArrayImages, Dataset, Split, texts
from rac_jax.data.missing import MissingData
from rac_jax.data.sets import folder, tfds


@dataclasses.dataclass(frozen=True)
class Layout:
    """The binary files: each image is a few bytes of labels, the finest last, then 3,072 bytes of pixels."""

    folder: str
    names: str
    files: dict[str, tuple[str, ...]]
    label_bytes: int


BINARY = {
    10: Layout(
        "cifar-10-batches-bin",
        "batches.meta.txt",
        {"train": tuple(f"data_batch_{i}.bin" for i in range(1, 6)), "test": ("test_batch.bin",)},
        label_bytes=1,
    ),
    100: Layout(
        "cifar-100-binary",
        "fine_label_names.txt",
        {"train": ("train.bin",), "test": ("test.bin",)},
        label_bytes=2,
    ),
}
SUPERCLASSES = {  # of CIFAR-100
    "aquatic mammals": "beaver dolphin otter seal whale",
    "fish": "aquarium_fish flatfish ray shark trout",
    "flowers": "orchid poppy rose sunflower tulip",
    "food containers": "bottle bowl can cup plate",
    "fruit and vegetables": "apple mushroom orange pear sweet_pepper",
    "household electrical devices": "clock keyboard lamp telephone television",
    "household furniture": "bed chair couch table wardrobe",
    "insects": "bee beetle butterfly caterpillar cockroach",
    "large carnivores": "bear leopard lion tiger wolf",
    "large man-made outdoor things": "bridge castle house road skyscraper",
    "large natural outdoor scenes": "cloud forest mountain plain sea",
    "large omnivores and herbivores": "camel cattle chimpanzee elephant kangaroo",
    "medium-sized mammals": "fox porcupine possum raccoon skunk",
    "non-insect invertebrates": "crab lobster snail spider worm",
    "people": "baby boy girl man woman",
    "reptiles": "crocodile dinosaur lizard snake turtle",
    "small mammals": "hamster mouse rabbit shrew squirrel",
    "trees": "maple_tree oak_tree palm_tree pine_tree willow_tree",
    "vehicles for the road and rails": "bicycle bus motorcycle pickup_truck train",
    "other vehicles": "lawn_mower rocket streetcar tank tractor",
}
HOW_TO_GET = """\
  One of these, under the root:
  cifar-{classes}-binary.tar.gz, unpacked ({layout}/{names} …), from
      www.cs.toronto.edu/~kriz/cifar.html (the "binary version");
  class folders, train/<class>/<image> and test/<class>/<image>;
  cifar{classes} as TFDS prepares it: tfds build cifar{classes} --file_format=array_record --data_dir=ROOT"""


def load(classes: int, root: str, *, imbalance: float, seed: int) -> Dataset:
    """`imbalance` is how many times the first class outnumbers the last; 0 or 1 = leave as it is."""
    layout = BINARY[classes]
    binary = next((path for path in (Path(root), Path(root, layout.folder)) if (path / layout.names).is_file()), None)
    if root and binary:
        dataset = _read_binary(binary, layout)
    elif root and Path(root, "train").is_dir():
        dataset = folder.load(root, seed=seed, val_share=0.0, test_share=0.0)
    elif root and Path(root, f"cifar{classes}").is_dir():
        dataset = tfds.load(f"cifar{classes}", root)
    else:
        how = HOW_TO_GET.format(classes=classes, layout=layout.folder, names=layout.names)
        raise MissingData(f"CIFAR-{classes}", root or '""', ["any form of its images"], how)
    if dataset.num_classes != classes:
        raise ValueError(f"{root}: {dataset.num_classes} classes; CIFAR-{classes} has {classes}")
    dataset = dataclasses.replace(dataset, name=f"cifar{classes}_lt", class_groups=groups(dataset.class_names))
    return long_tail.thin_out(dataset, imbalance, seed) if imbalance > 1 and is_balanced(dataset) else dataset


def groups(class_names: tuple[str, ...]) -> tuple[str, ...]:
    """The superclass of each class of CIFAR-100; none for other classes."""
    group = {name: title for title, names in SUPERCLASSES.items() for name in names.split()}
    found = tuple(group.get(name, "") for name in class_names)
    return found if all(found) else ()


def is_balanced(dataset: Dataset) -> bool:
    """Whether all classes have the same count; class folders that are long-tailed already are left as they are."""
    return bool(dataset.class_counts.min() == dataset.class_counts.max())


def _read_binary(directory: Path, layout: Layout) -> Dataset:
    class_names = tuple((directory / layout.names).read_text().split())
    splits = {}
    for name, files in layout.files.items():
        content = np.concatenate([_read_rows(directory / file, layout.label_bytes) for file in files])
        pixels = content[:, layout.label_bytes :].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        labels = content[:, layout.label_bytes - 1].astype(np.int32)
        if labels.max() >= len(class_names):
            raise ValueError(f"{directory}: label {labels.max()} in {name}, but {len(class_names)} names")
        images = ArrayImages(f"{directory.name}/{name}", np.ascontiguousarray(pixels))
        splits[name] = Split(name, images, labels)
    return Dataset(directory.name, class_names, texts(class_names), splits)


def _read_rows(file: Path, label_bytes: int) -> np.ndarray:
    row = label_bytes + 3 * 32 * 32
    content = np.fromfile(file, np.uint8)
    if content.size == 0 or content.size % row:
        raise ValueError(f"{file}: {content.size} bytes is not a multiple of {row}; the file was cut short")
    return content.reshape(-1, row)
