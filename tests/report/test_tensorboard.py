"""What is written is read back with tensorboard's own reader."""

import io

import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2

from rac_jax.report.tensorboard import TensorBoard


def test_scalars_images_text_and_settings(tmp_path):
    pixels = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    with TensorBoard(tmp_path) as board:
        board.scalars(3, {"train/loss": 0.5, "train/rate": 1e-7})
        board.scalars(4, {"train/loss": 0.25})
        board.image(4, "neighbours/0", pixels)
        board.text(0, "config", "**k** = 30")
        board.hparams({"memory.k": 30, "loss.name": "lace", "data.crop_scale": [0.75, 1.0], "flag": True})
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(p.step, p.value) for p in events.Scalars("train/loss")] == [(3, 0.5), (4, 0.25)]
    assert events.Scalars("train/rate")[0].value == pytest.approx(1e-7)
    image = events.Images("neighbours/0")[0]
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(image.encoded_image_string))), pixels)
    assert events.Tensors("config")[0].tensor_proto.string_val[0] == b"**k** = 30"
    content = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    settings = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
    assert settings["memory.k"].number_value == 30
    assert settings["loss.name"].string_value == "lace"
    assert settings["data.crop_scale"].string_value == "[0.75, 1.0]"
    assert settings["flag"].bool_value is True


def test_steps_that_are_logged_again_after_a_kill_appear_once(tmp_path):
    for first, last in (0, 4), (2, 6):  # killed after step 4; the checkpoint was of step 2
        with TensorBoard(tmp_path) as board:
            board.start(first + 1)
            for step in range(first + 1, last + 1):
                board.scalars(step, {"train/loss": float(10 * first + step)})
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(p.step, p.value) for p in events.Scalars("train/loss")] == [
        (1, 1.0), (2, 2.0), (3, 23.0), (4, 24.0), (5, 25.0), (6, 26.0)
    ]  # fmt: skip
