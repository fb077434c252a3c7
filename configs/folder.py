"""RAC on your own images: one folder a class.

    python -m rac_jax.main --config=configs/folder.py --config.data.root=DIR
    python -m rac_jax.data --config=configs/folder.py --config.data.root=DIR   # only look at the data

DIR holds <class>/<image>, and test and validation images are held out of it (data.test_share and
data.val_share), or train/<class>/<image> with test/ and, if you like, val/. A folder's name is the
text that the memory stores for its images. For a table (.csv, .jsonl, .parquet) in place of folders:
--config.data.name=table:FILE, with the columns path and label, perhaps caption and split.

E and B start from EfficientNet-Lite0 (ImageNet), which the requirements bring along, at 128 pixels;
T is a small CLIP text transformer from scratch. Images that cannot be decoded are left out.
Hardware: made for a CPU or one GPU. Cost and result: depend on the data; not yet run to the end.
"""

from ml_collections import ConfigDict

from rac_jax import config


def get_config(variant: str = "") -> ConfigDict:
    """There is only the one."""
    c = config.default("folder", variant)
    c.data.name = "folder"
    c.data.image_size = 128
    c.data.on_bad_image = "skip"
    c.data.workers = 2

    c.model.base.name = c.model.encoder.name = "efficientnet_lite0"
    c.model.base.weights = c.model.encoder.weights = "efficientnet_lite0:imagenet"
    c.model.text.update(width=128, depth=2, heads=4, projection=128)

    c.optim.learning_rate = 3e-4
    c.optim.warmup_epochs = 2.0
    c.train.batch_size = 64
    c.train.epochs = 20.0
    c.eval.batch_size = 128
    return c
