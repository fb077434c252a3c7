"""How long training B would take is added up from measured parts."""

from pathlib import Path

import pytest
from PIL import Image

from configs import cifar100_lt, demo, folder
from rac_jax import config as configs
from rac_jax.compile import outlook
from rac_jax.compile.outlook import Times
from rac_jax.data import record
from tests import tiny
from tests.test_configs import shrink


def finetuned():
    c = shrink(demo.get_config())
    c.train.batch_size, c.train.epochs, c.train.views = 10, 3.0, 4
    return c


def test_the_parts_add_up():
    times = Times(compiling=5.0, step=0.5, encoding=0.02, decoding=0.01)
    # 100 images: 30 steps, 400 views; 60 images are evaluated
    assert outlook.estimate(finetuned(), times, 100, 60) == pytest.approx(5 + 460 * 0.03 + 30 * 0.5)


@pytest.mark.parametrize(
    "seconds, words",
    [(3, "10 seconds"), (44, "40 seconds"), (100, "2 minutes"), (3000, "50 minutes"), (9000, "2.5 hours")],
)
def test_times_in_words(seconds, words):
    assert outlook.in_words(seconds) == words


SMALL = """
from configs import demo
from tests.test_configs import shrink

def get_config(variant=""):
    return shrink(demo.get_config())
"""


def test_without_views_each_step_decodes_its_images_and_e_sees_them_unless_neighbours_are_cached():
    c = finetuned()
    c.train.views = 0
    times = Times(compiling=5.0, step=0.5, encoding=0.02, decoding=0.01)
    assert outlook.estimate(c, times, 100, 60) == pytest.approx(5 + (300 + 60) * 0.01 + (100 + 60) * 0.02 + 30 * 0.5)
    c.memory.lookup = "callback"
    assert outlook.estimate(c, times, 100, 60) == pytest.approx(5 + (300 + 60) * 0.03 + 30 * 0.5)


@pytest.mark.parametrize("config, batch", [(folder.get_config("lite2"), 64), (cifar100_lt.get_config("instant"), 128)])
def test_what_comes_next_is_the_config_that_is_named(config, batch):
    """On the run's own data. Before, it was one recipe for all: batch 64, and blocks of another B were frozen."""
    config.data.root, config.data.image_size = "somewhere", 96
    then = outlook.next_config(config)
    assert then.train.batch_size == batch and then.train.views and then.data == config.data
    assert then.optim.frozen == (
        r"base\.(stem|blocks\.([0-9]|1[0-4])\.)" if batch == 64 else r"base\.(stem|blocks\.([0-9]|10)\.)"
    )


def test_the_command_names_the_data_and_the_memory():
    c = folder.get_config("lite2")
    c.data.root, c.data.val_share, c.memory.k = "my photos", 0.0, 5
    start = "python -m rac_jax.main --config=configs/folder.py:finetune+lite2 '--config.data.root=my photos'"
    start += " --config.data.val_share=0.0 --config.memory.k=5"
    assert outlook.command(c, Path("runs/x")) == f":\n  {start} --config.memory.dir=runs/x/memory"
    c.memory.dir = "m"
    assert outlook.command(c, Path("runs/x")) == f":\n  {start} --config.memory.dir=m"
    c.memory.index = "flat"  # :finetune wants hnsw and would refuse this memory
    assert outlook.command(c, Path("runs/x")) == f":\n  {start}"
    c.train.then = "configs/folder.py:tuned"  # with another E, and so another memory
    assert outlook.command(c, Path("runs/x")) == f":\n  {start.replace('finetune+lite2', 'tuned')}"
    c.train.then = "configs/nowhere.py:finetune"
    assert outlook.command(c, Path("runs/x")) == ""


def test_the_command_keeps_the_augmentation_of_what_comes_next():
    c = demo.get_config("instant")
    start = "python -m rac_jax.main --config=configs/demo.py:finetune"
    assert c.data.randaugment_layers == 3 and outlook.next_config(c).data.randaugment_layers == 0
    assert outlook.command(c, Path("runs/x")) == f":\n  {start} --config.memory.dir=runs/x/memory"


def test_training_e_and_encoding_once_more_are_added():
    c = shrink(folder.get_config("tuned"))
    c.tune.update(batch_size=10, epochs=3.0, views=4)
    times = Times(compiling=5.0, step=0.5, encoding=0.02, decoding=0.01)
    assert outlook.estimate(c, times, 100, 60) == pytest.approx(5 + 400 * 0.03 + 30 * 0.5 + 160 * 0.03)


def test_bad_images_are_not_looked_for_again(tmp_path, caplog):
    for split, name in (("train", "a"), ("test", "a"), ("train", "b"), ("test", "b")):
        (tmp_path / split / name).mkdir(parents=True)
        Image.new("RGB", (32, 32)).save(tmp_path / split / name / "1.png")
    (tmp_path / "train" / "a" / "0.png").write_bytes(b"\x89PNG\r\n\x1a\n nothing")
    c = folder.get_config()
    c.data.root = str(tmp_path)
    assert 0 < outlook._decoding(c) < 5 and c.data.on_bad_image == "skip"
    assert "left out" not in caplog.text


def test_the_demos_next_config_trains_all_of_b():
    then = outlook.next_config(demo.get_config("instant"))
    assert (then.name, then.optim.frozen, then.train.views, then.train.batch_size) == ("demo_finetune", "", 0, 32)


def test_without_its_file_the_run_itself_is_finetuned():
    c = shrink(demo.get_config("instant"))
    c.train.then = "configs/nowhere.py:finetune"
    then = outlook.next_config(c)
    assert then.train.views == 4 and then.train.batch_size == 64 and then.data == c.data


def test_a_file_that_is_no_config_is_named(tmp_path):
    c = demo.get_config("instant")
    (tmp_path / "none.py").write_text("")
    c.train.then = str(tmp_path / "none.py")
    with pytest.raises(configs.ConfigError, match=r"config\.train\.then .*none\.py has no function get_config"):
        outlook.next_config(c)


def test_a_short_run_names_what_comes_next_and_its_time(tmp_path, capsys, monkeypatch):
    c = shrink(demo.get_config("instant"))
    (tmp_path / "small.py").write_text(SMALL)
    c.train.then = f"{tmp_path / 'small.py'}"
    dataset = outlook.data.load(c)
    record.start(c, dataset, tmp_path)
    seen = []
    monkeypatch.setattr(outlook, "estimate", lambda *given: seen.append(given) or 200.0)
    outlook.say(c, tmp_path)
    ((config, times, images, evaluated),) = seen
    assert (images, evaluated) == (297, 661) and config.train.views and configs.voices(config)[0] == "base"
    assert 0 < times.step < 60 and 0 < times.encoding < 5 and 0 < times.decoding < 5
    assert config.train.batch_size == 16
    said = f"{c.train.then} would train B as well, in about 3 minutes here"
    assert said in capsys.readouterr().out


def test_other_runs_say_nothing(tmp_path, capsys):
    outlook.say(tiny.config(), tmp_path)
    assert capsys.readouterr().out == ""
