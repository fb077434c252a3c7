"""How fast images are decoded and augmented, compared with a plain Pillow loop and, if installed, timm.

Images are scikit-learn's two sample photographs, encoded at quality 90. The contenders take turns, so that other load
affects all of them equally. Rates are the best of several rounds; those of the pipeline are medians of paired rounds.
"""

import argparse
import dataclasses
import functools
import io
import itertools
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from typing import Any

import numpy as np
from PIL import Image, ImageEnhance
from sklearn.datasets import load_sample_images
from tqdm import tqdm

from rac_jax import config, data
from rac_jax.data import pipeline, randaugment, transforms
from rac_jax.data.dataset import Split
from rac_jax.data.decode import decode

SIZES = ((256, 256), (500, 375))  # width, height: Places365's small images, a typical photograph
ROUNDS, IMAGES = 7, 300
BATCH, BATCHES = 50, 12
Work = Callable[[bytes, np.random.Generator], Any]


def main(arguments: Sequence[str] = ()) -> None:
    """Print a table for each size, then what the pipeline itself costs and how it scales."""
    argparse.ArgumentParser("rac_jax.bench data", description=__doc__).parse_args(arguments)
    settings = config.default()
    ours = data.train_transform(settings)
    assert isinstance(ours, transforms.TrainTransform)
    contenders: dict[str, Work] = {
        "decode, Pillow": lambda encoded, _: np.asarray(Image.open(io.BytesIO(encoded)).convert("RGB")),
        "decode, ours": lambda encoded, _: decode(encoded, ""),
        "recipe, Pillow": functools.partial(plain_pillow, with_pillow(ours)),
        "recipe, ours": lambda encoded, random: ours(decode(encoded, ""), random),
    }
    timm = timm_transform(ours)
    if timm:
        contenders["recipe, timm"] = timm
    for size in SIZES:
        rates = race(contenders, photographs(*size), f"{size[0]} × {size[1]}")
        print(f"\n{size[0]} × {size[1]} JPEG, images/s on one core")
        for name, rate in rates.items():
            plain = rates[name.split(",")[0] + ", Pillow"]
            print(f"  {name:<16}{rate:>7.0f}  {rate / plain:.2f} × Pillow")
    print_pipeline(ours)


def photographs(width: int, height: int) -> list[bytes]:
    """The sample photographs, cut and resized to width × height, as JPEG."""
    encoded = []
    for pixels in load_sample_images().images:
        picture = Image.fromarray(pixels)
        scale = max(width / picture.width, height / picture.height)
        size = round(picture.width * scale), round(picture.height * scale)
        buffer = io.BytesIO()
        picture.resize(size, Image.Resampling.BICUBIC).crop((0, 0, width, height)).save(buffer, "JPEG", quality=90)
        encoded.append(buffer.getvalue())
    return encoded


def race(contenders: dict[str, Work], encoded: Sequence[bytes], title: str) -> dict[str, float]:
    """Images a second of each, in turns."""
    best = dict.fromkeys(contenders, 0.0)
    for _, (name, work) in tqdm(list(itertools.product(range(ROUNDS), contenders.items())), desc=title, leave=False):
        random = np.random.default_rng(0)
        start = time.process_time()  # of the CPU, so that other programs count for little
        for number in range(IMAGES):
            work(encoded[number % len(encoded)], random)
        best[name] = max(best[name], IMAGES / (time.process_time() - start))
    return best


def plain_pillow(like: transforms.TrainTransform, encoded: bytes, random: np.random.Generator) -> np.ndarray:
    """The recipe as it is usually written, with Pillow's decoder, resize and transforms; the draws are ours."""
    picture = Image.open(io.BytesIO(encoded)).convert("RGB")
    box = transforms.random_box(picture.width, picture.height, like.crop_scale, like.crop_ratio, random)
    picture = picture.crop(box).resize((like.size, like.size), like.resample(random))
    if random.random() < like.flip:
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.asarray(like.augment(picture, like.resample(random), random))


def _affine(matrix: Callable[[float, Image.Image], tuple[float, ...]]) -> randaugment.Operation:
    def transform(image: Image.Image, level: float, resample: Image.Resampling) -> Image.Image:
        grey = (randaugment.GREY,) * 3
        return image.transform(image.size, Image.Transform.AFFINE, matrix(level, image), resample, fillcolor=grey)

    return transform


PILLOW: dict[str, randaugment.Operation] = {
    "SharpnessIncreasing": lambda image, factor, _: ImageEnhance.Sharpness(image).enhance(factor),
    "ShearX": _affine(lambda level, _: (1, level, 0, 0, 1, 0)),
    "ShearY": _affine(lambda level, _: (1, 0, 0, level, 1, 0)),
    "TranslateXRel": _affine(lambda level, image: (1, 0, level * image.width, 0, 1, 0)),
    "TranslateYRel": _affine(lambda level, image: (1, 0, 0, 0, 1, level * image.height)),
}


def with_pillow(ours: transforms.TrainTransform) -> transforms.TrainTransform:
    """The same settings, with all operations through Pillow."""
    operations = tuple((PILLOW.get(name, ours_), scale) for name, (ours_, scale) in randaugment.OPERATIONS.items())
    return dataclasses.replace(ours, augment=dataclasses.replace(ours.augment, operations=operations))


def timm_transform(like: transforms.TrainTransform) -> Work | None:
    """timm's own transform with this recipe, where timm is installed."""
    try:
        from timm.data import create_transform  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return None
    magnitude, noise = like.augment.magnitude, like.augment.noise
    transform = create_transform(
        like.size,
        is_training=True,
        scale=like.crop_scale,
        ratio=like.crop_ratio,
        hflip=like.flip,
        color_jitter=None,
        auto_augment=f"rand-m{magnitude:g}-n{like.augment.layers}-mstd{noise:g}-inc1",
        interpolation="random",
        mean=(0.5,) * 3,
        std=(0.5,) * 3,
        use_prefetcher=True,  # uint8 out, as ours
    )
    return lambda encoded, _: transform(Image.open(io.BytesIO(encoded)).convert("RGB"))


@dataclasses.dataclass(frozen=True)
class EncodedImages:
    """Images in memory, decoded on access, so that the file system does not affect the measurement."""

    encoded: tuple[bytes, ...]

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, position: int) -> np.ndarray:
        return decode(self.encoded[position % len(self.encoded)], "")


def print_pipeline(transform: transforms.Transform) -> None:
    """What making batches adds to the bare calls, and how one and two worker processes compare."""
    images: Any = EncodedImages(tuple(photographs(*SIZES[0])))
    split = Split("train", images, np.zeros(len(images), np.int32))
    bare, batched = _loop_and_batches(split, transform)
    measures = {"loop": functools.partial(_loop_rate, split, transform)}
    measures["worker"] = functools.partial(_worker_rate, split, transform)
    rates: dict[tuple[str, int], list[float]] = {(name, number): [] for name in measures for number in (1, 2)}
    for _, (name, number) in tqdm(list(itertools.product(range(ROUNDS), rates)), desc="workers", leave=False):
        rates[name, number].append(measures[name](number))
    print(f"\nthe pipeline, 256 × 256 JPEG with the recipe, images/s ({os.cpu_count()} cores)")
    print(f"  decode and augment, in a loop  {np.median(bare):>7.0f}  on one core")
    more = np.median(bare / batched) - 1
    print(f"  the same in batches            {np.median(batched):>7.0f}  {more:+.1%} time")
    print("  by the clock, so only on an idle machine; medians over rounds in turns:")
    for name, title in (("loop", "the loop in {} process{}"), ("worker", "{} worker process{}")):
        one, two = np.array(rates[name, 1]), np.array(rates[name, 2])
        print(f"  {title.format(1, ''):<31}{np.median(one):>7.0f}")
        print(f"  {title.format(2, 'es'):<31}{np.median(two):>7.0f}  {np.median(two / one):.2f} × one")


def _loop_and_batches(split: Split, transform: transforms.Transform) -> tuple[np.ndarray, np.ndarray]:
    """Images a second of the bare calls, and of the pipeline making batches of the same images and draws, by round."""
    examples = pipeline.Examples(split, transform, seed=0)
    batches = pipeline.Batches(examples, BATCH, BATCH, process=0, processes=1)
    drawn = [(int(examples(place)["id"]), place) for place in range(BATCH * BATCHES)]
    bare, batched = [], []
    for _ in tqdm(range(ROUNDS), desc="batches", leave=False):
        start = time.process_time()
        for position, place in drawn:
            transform(split.images[position], examples.random(place))
        middle = time.process_time()
        for number in range(BATCHES):
            batches(number)
        bare.append(middle - start)
        batched.append(time.process_time() - middle)
    return len(drawn) / np.array(bare), len(drawn) / np.array(batched)


def _worker_rate(split: Split, transform: transforms.Transform, workers: int) -> float:
    """Images a second through the pipeline with its worker processes."""
    batches = pipeline.train_batches(split, transform, batch_size=BATCH, seed=0, workers=workers)
    for _ in range(4 * workers):  # the workers have started, and their buffers are full
        next(batches)
    start = time.perf_counter()
    for _ in range(BATCHES * workers):
        next(batches)
    rate = BATCH * BATCHES * workers / (time.perf_counter() - start)
    del batches
    return rate


def _loop_rate(split: Split, transform: transforms.Transform, processes: int) -> float:
    """Images a second of the bare calls in processes of their own: what the machine gives at best."""
    context = multiprocessing.get_context("spawn")
    ready, rates = context.Barrier(processes), context.Queue()
    examples = pipeline.Examples(split, transform, seed=0)
    running = [context.Process(target=_timed_loop, args=(examples, ready, rates)) for _ in range(processes)]
    for process in running:
        process.start()
    total = sum(rates.get() for _ in running)
    for process in running:
        process.join()
    return total


def _timed_loop(examples: pipeline.Examples, ready: Barrier, rates: Queue) -> None:
    examples(0)
    ready.wait()
    start = time.perf_counter()
    for place in range(BATCH * BATCHES):
        examples(place)
    rates.put(BATCH * BATCHES / (time.perf_counter() - start))
