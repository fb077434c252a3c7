"""TensorBoard event files, written with tensorboard alone."""

import io
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, tensor_shape_pb2, types_pb2
from tensorboard.plugins.hparams import summary_v2 as hparams
from tensorboard.summary.writer.event_file_writer import EventFileWriter


class TensorBoard:
    """Writes scalars, images, text and hyper-parameters of one run into a folder."""

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self._writer = EventFileWriter(str(folder))

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

    def hparams(self, settings: Mapping[str, Any]) -> None:
        """The run's settings for the HPARAMS tab."""
        plain = {k: v if isinstance(v, bool | int | float) else str(v) for k, v in settings.items()}
        self._add(hparams.hparams_pb(plain), 0)

    def __enter__(self) -> "TensorBoard":
        return self

    def __exit__(self, *_: object) -> None:
        """Write what is buffered."""
        self._writer.flush()
        self._writer.close()

    def _add(self, summary: summary_pb2.Summary, step: int) -> None:
        self._writer.add_event(event_pb2.Event(summary=summary, step=step, wall_time=time.time()))
