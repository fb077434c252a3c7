"""RAC on your own images: one folder a class.

  python -m rac_jax.main --config=configs/folder.py --config.data.root=DIR

DIR holds <class>/<image> (test and validation images are then held out, --config.data.test_share and
val_share) or train/<class>/<image> with test/ and, if you like, val/. The class's folder name is the
text that the memory stores. To look at the data first:

  python -m rac_jax.data --config=configs/folder.py --config.data.root=DIR

E and B start from EfficientNet-Lite0 (ImageNet), which the requirements bring along, at 128 pixels:
sized for a laptop. A table in place of folders: --config.data.name=table:FILE (.csv, .jsonl, .parquet
with the columns path and label, perhaps caption and split).

Result: depends on the data; on no data set not yet run to the end.
"""

from ml_collections import ConfigDict

from rac_jax import config


def get_config(variant: str | None = None) -> ConfigDict:
    """The one variant is the default."""
    if variant:
        raise ValueError(f"configs/folder.py has no variant {variant!r}")
    c = config.default()
    c.name = "folder"
    c.data.name = "folder"
    c.data.image_size = 128
    c.data.on_bad_image = "skip"
    c.data.workers = 2
    return c
