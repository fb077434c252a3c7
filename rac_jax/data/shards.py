"""Pack a split into ArrayRecord files of 2,000 images, so that the work can be resumed."""

import dataclasses
import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from array_record.python.array_record_module import ArrayRecordWriter
from PIL import Image

from rac_jax.data import content
from rac_jax.data.dataset import Dataset, Images, Split
from rac_jax.data.decode import BadImage, decode
from rac_jax.data.encoded import EncodedImages
from rac_jax.data.files import FileImages
from rac_jax.runtime.files import write_text

SHARD = 2_000  # images
VERSION = 2  # of the notes
TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"


@dataclasses.dataclass(frozen=True, eq=False)
class Job:
    """One shard: images to check and, if there is a folder, to pack."""

    split: Split  # only this shard's images
    class_names: tuple[str, ...]
    number: int
    of: int
    out: Path | None

    def __len__(self) -> int:
        return len(self.split)

    @property
    def file(self) -> Path:
        assert self.out
        return self.out / f"images-{self.split.name}.array_record-{self.number:05d}-of-{self.of:05d}"

    @property
    def notes(self) -> Path:
        """The file that lists the shard's images and the bad ones, one JSON object a line; written last."""
        return self.file.with_name(f"{self.split.name}-{self.number:05d}.notes")

    def finished(self) -> bool:
        """Whether the shard was written for these images; one that is damaged is written again."""
        if self.out is None or not self.notes.is_file() or not self.file.is_file():
            return False
        try:
            return self._noted()[0]["shard"] == self._identity()
        except (ValueError, LookupError, TypeError):
            return False

    def rows(self) -> list[dict[str, Any]]:
        return [note for note in self._noted()[1:] if "bad" not in note]

    def bad(self) -> list[str]:
        return [note["bad"] for note in self._noted()[1:] if "bad" in note]

    def _noted(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.notes.read_text(encoding="utf-8").split("\n") if line]

    def _identity(self) -> list[Any]:
        """Other images, or another division into shards, are another job."""
        return [VERSION, self.number, self.of, self.split.images.fingerprint(), self.split.labels.tolist()]


def plan(split: Split, dataset: Dataset, out: Path | None) -> list[Job]:
    """The jobs of a split, in order."""
    starts = range(0, len(split), SHARD)
    parts = [split.select(np.arange(start, min(start + SHARD, len(split)))) for start in starts]
    return [Job(part, dataset.class_names, number, len(parts), out) for number, part in enumerate(parts)]


def run(job: Job) -> list[str]:
    """Check and pack a shard; returns a line for each bad image. The file gets its name when it is complete."""
    kept: list[tuple[dict[str, Any], bytes]] = []
    bad = []
    for position, path in enumerate(job.split.images.references()):
        row: dict[str, Any] = {"path": path, "label": int(job.split.labels[position])}
        if job.split.captions:
            row["caption"] = job.split.captions[position]
        try:
            encoded = _encoded(job.split.images, position)
        except BadImage as error:
            bad.append(str(error))
            continue
        row["sample"] = content.sample(encoded).decode()
        kept.append((row, encoded))
    if job.out:
        _write(job, kept)
        lines = [{"shard": job._identity()}, *(row for row, _ in kept), *({"bad": line} for line in bad)]
        write_text(job.notes, "".join(json.dumps(line) + "\n" for line in lines))
    return bad


def _encoded(images: Images, position: int) -> bytes:
    """The image's own encoding, if it can be decoded; an image that is not encoded becomes a PNG."""
    if isinstance(images, EncodedImages | FileImages):
        encoded = images.encoded(position)
        decode(encoded, images.source_of(position))
        return encoded
    buffer = io.BytesIO()
    Image.fromarray(images[position]).save(buffer, "PNG")
    return buffer.getvalue()


def _write(job: Job, kept: list[tuple[dict[str, Any], bytes]]) -> None:
    described = features(job.class_names)
    job.file.parent.mkdir(parents=True, exist_ok=True)
    temporary = job.file.with_name(f"{job.file.name}.writing-{os.getpid()}")
    writer = ArrayRecordWriter(str(temporary), "group_size:1")  # one image a group: random access
    for row, encoded in kept:
        example = described.encode_example({"image": io.BytesIO(encoded), "label": row["label"]})
        writer.write(described.serialize_example(example))
    writer.close()
    temporary.replace(job.file)


def features(class_names: tuple[str, ...]) -> Any:
    """The fields of a record, for TFDS."""
    label = tfds.features.ClassLabel(names=class_names)
    return tfds.features.FeaturesDict({"image": tfds.features.Image(), "label": label})


def template(out: Path) -> Any:
    """The names of the files, for TFDS."""
    return tfds.core.ShardedFileTemplate(
        data_dir=str(out), dataset_name="images", filetype_suffix="array_record", template=TEMPLATE
    )


def split_info(name: str, jobs: list[Job], out: Path) -> Any:
    """The description of a split, for TFDS."""
    return tfds.core.SplitInfo(
        name=name,
        shard_lengths=[len(job.rows()) for job in jobs],
        num_bytes=sum(job.file.stat().st_size for job in jobs),
        filename_template=template(out),
    )
