"""ImageNet-LT by the recipe of Places365-LT: 115,846 training images, 1,000 classes, 1,280 down to 5 images.

    python -m rac_jax.main --config=configs/imagenet_lt.py --config.data.root=DIR
    python -m rac_jax.main --config=configs/imagenet_lt.py:plus        # frozen B with adapters, votes and prototypes
    python -m rac_jax.main --config=configs/imagenet_lt.py:plus+clip   # with CLIP, B's head started from class names

DIR holds ImageNet 2012 (train/ and val/), the ImageNet-LT lists and a file with the class names. If any of them is
missing, the run stops within seconds and says which. The paper has no figures for ImageNet-LT. The AugReg weights were
trained on ImageNet-21k, which contains these images.
Hardware: 8 GPUs. Cost and result: not yet run.
"""

from ml_collections import ConfigDict

from rac_jax import config

VARIANTS = ("", "plus")


def get_config(variant: str = "") -> ConfigDict:
    """The recipe, or a frozen B with adapters."""
    variant, models = config.without_models(variant)
    c = config.default("imagenet_lt", variant, VARIANTS)
    c.data.name = "imagenet_lt"
    c.data.workers = 16
    c.model.base.name = c.model.encoder.name = "vit_b16"
    c.model.base.weights = c.model.encoder.weights = "vit_b16:augreg_in21k"
    c.model.text.name = "clip_text"
    c.model.text.weights = "clip_b16"
    if variant == "plus":
        config.adapted(c, classes=1000)
    return config.with_models(c, models)
