"""What `python -m rac_jax.data` prints and draws."""

import subprocess
import sys

import numpy as np
import pytest

from rac_jax import config, data
from rac_jax.data import show


def test_counts_of_the_digits():
    text = show.counts_table(data.load(config.default()))
    assert text.splitlines()[0] == "digits: 10 classes"
    assert "test          250 images" in text
    assert "training images a class: 150 to 5" in text
    assert "many            2 classes" in text


def test_frequency_plot_falls():
    picture = np.asarray(show.frequency_plot(np.array([1000, 100, 10, 1]), size=(480, 240)))
    columns = np.linspace(60, 460, 5)[:-1].astype(int) + 20
    heights = [(picture[20:200, x] != 255).any(axis=-1).sum() for x in columns]
    grid = heights[3]  # a class of one image has no height: what is there are the grid's lines
    assert heights[0] > heights[1] > heights[2] > grid
    assert abs((heights[0] - heights[1]) - (heights[1] - heights[2])) <= 3  # decades are equally high


def test_contact_sheet_shows_the_images():
    c = config.default()
    c.data.image_size = 32
    found = data.load(c)
    test = found.split("test")
    sheet = np.asarray(show.contact_sheet(found, test, data.eval_transform(c), seed=None, rows=2, columns=3))
    assert sheet.shape == (2 * (96 + 24) + 8, 3 * (96 + 8) + 8, 3)
    expected = data.eval_transform(c)(test.images[1], np.random.default_rng(0))
    np.testing.assert_array_equal(sheet[8:40, 112:144], expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config.data.name=folder", "--config.data.root=/nowhere"], "error: config.data.root is '/nowhere', which"),
        (["--config.data.crop=2.0"], "error: config.data.crop is 2.0; it must be"),
    ],
)
def test_an_error_of_the_command_is_one_message(arguments: list[str], message: str):
    command = [sys.executable, "-m", "rac_jax.data", "--config=configs/digits.py", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and done.stderr.startswith(message) and "Traceback" not in done.stderr
