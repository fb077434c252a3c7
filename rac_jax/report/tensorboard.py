"""TensorBoard event files, written with tensorboard alone."""

import contextlib
import io
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, tensor_shape_pb2, types_pb2
from tensorboard.plugins.hparams import summary_v2 as hparams
from tensorboard.summary.writer.record_writer import RecordWriter

from rac_jax.runtime import files, processes


class TensorBoard:
    """Writes scalars, images, text and hyper-parameters of one run into a folder."""

    def __init__(self, folder: Path | None):
        """A new file in the folder; None writes nothing."""
        self._writer: RecordWriter | None = None
        if folder is None:
            return
        self._path = folder / f"events.out.tfevents.{time.time_ns():020d}.{socket.gethostname()}.{os.getpid()}"
        with files.writing(self._path):
            folder.mkdir(parents=True, exist_ok=True)
            self._writer = RecordWriter(self._path.open("wb"))
        self._write(event_pb2.Event(file_version="brain.Event:2", wall_time=time.time()))

    @classmethod
    def of(cls, workdir: Path) -> "TensorBoard":
        """The writer of a run, in <workdir>/tensorboard; only the first process writes."""
        return cls(workdir / "tensorboard" if processes.first() else None)

    def start(self, step: int) -> None:
        """Mark a start of the run at `step`: TensorBoard drops what an earlier, killed start logged from there on."""
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._write(event_pb2.Event(session_log=start, step=step, wall_time=time.time()))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """One point for each tag."""
        summary = summary_pb2.Summary()
        for tag, value in values.items():
            summary.value.add(tag=tag, simple_value=float(value))
        self._add(summary, step)

    def image(self, step: int, tag: str, pixels: np.ndarray) -> None:
        """A picture, uint8 [H, W, 3]."""
        png = io.BytesIO()
        Image.fromarray(pixels).save(png, "PNG")
        height, width = pixels.shape[:2]
        image = summary_pb2.Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=png.getvalue())
        self._add(summary_pb2.Summary(value=[summary_pb2.Summary.Value(tag=tag, image=image)]), step)

    def text(self, step: int, tag: str, markdown: str) -> None:
        """Markdown text."""
        metadata = summary_pb2.SummaryMetadata(
            plugin_data=summary_pb2.SummaryMetadata.PluginData(plugin_name="text"),
            data_class=summary_pb2.DATA_CLASS_TENSOR,
        )
        shape = tensor_shape_pb2.TensorShapeProto(dim=[tensor_shape_pb2.TensorShapeProto.Dim(size=1)])
        tensor = tensor_pb2.TensorProto(dtype=types_pb2.DT_STRING, string_val=[markdown.encode()], tensor_shape=shape)
        value = summary_pb2.Summary.Value(tag=tag, metadata=metadata, tensor=tensor)
        self._add(summary_pb2.Summary(value=[value]), step)

    def config(self, plain: Mapping[str, Any]) -> None:
        """A run's config, as text and as hyper-parameters."""
        self.text(0, "config", "```\n" + json.dumps(plain, indent=2) + "\n```")
        self.hparams(dict(_flat(plain)))

    def hparams(self, settings: Mapping[str, Any]) -> None:
        """The run's settings for the HPARAMS tab."""
        plain = {k: v if isinstance(v, bool | int | float) else str(v) for k, v in settings.items()}
        self._add(hparams.hparams_pb(plain), 0)

    def __enter__(self) -> "TensorBoard":
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            with contextlib.suppress(OSError):  # each write was flushed, or has raised
                self._writer.close()

    def _add(self, summary: summary_pb2.Summary, step: int) -> None:
        self._write(event_pb2.Event(summary=summary, step=step, wall_time=time.time()))

    def _write(self, event: event_pb2.Event) -> None:
        """Flush to the disk, so that what was logged survives a kill."""
        if self._writer is not None:
            with files.writing(self._path):
                self._writer.write(event.SerializeToString())
                self._writer.flush()


def _flat(plain: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and values of a nested mapping."""
    for name, value in plain.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
