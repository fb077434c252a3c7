"""Show the data set of a config: python -m rac_jax.data --config=configs/demo.py [--out=FOLDER]

Prints the counts and writes frequencies.png, train.png (augmented samples) and test.png.
"""

from pathlib import Path

from absl import app, flags
from ml_collections import config_flags

from rac_jax import data, rules
from rac_jax.data import show
from rac_jax.runtime import commands
from rac_jax.runtime.files import atomic

CONFIG = config_flags.DEFINE_config_file("config", "configs/demo.py", "The config whose data to show.")
OUT = flags.DEFINE_string("out", "", "The folder for the pictures; default: runs/<config's name>/data.")


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unknown arguments: {' '.join(argv[1:])}")
    config = CONFIG.value
    rules.validate(config, devices=1)
    dataset = data.load(config)
    print(show.counts_table(dataset))
    out = Path(OUT.value or f"runs/{config.name}/data")
    train = show.contact_sheet(dataset, dataset.split("train"), data.train_transform(config), seed=config.seed)
    pictures = {"frequencies": show.frequency_plot(dataset.class_counts), "train": train}
    if "test" in dataset.splits:
        pictures["test"] = show.contact_sheet(dataset, dataset.split("test"), data.plain_transform(config), seed=None)
    for name, picture in pictures.items():
        with atomic(out / f"{name}.png") as temporary:
            picture.save(temporary, "PNG")
        print(f"wrote {out / name}.png")


if __name__ == "__main__":
    commands.run(main, CONFIG)
