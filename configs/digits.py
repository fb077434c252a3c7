"""RAC on 466 handwritten digits, long-tailed: the smallest data set, for tests and quick trials.

    python -m rac_jax.main --config=configs/digits.py           # the paper's RAC
    python -m rac_jax.main --config=configs/digits.py:base      # base voice only, LACE
    python -m rac_jax.main --config=configs/digits.py:text      # text voice only, LACE
    python -m rac_jax.main --config=configs/digits.py:ce        # RAC under cross-entropy
    python -m rac_jax.main --config=configs/digits.py:balce     # RAC under balanced cross-entropy

Data: scikit-learn's digits; ten classes with 150 down to 5 training images, 25 test images each.
B and E: EfficientNet-Lite0 (ImageNet) at 64 pixels. T: a small CLIP text transformer from scratch. ImageNet features of
digits are poor, so the memory helps little here; configs/demo.py shows what RAC is for.
Hardware: 2 CPU cores, 1 to 2 minutes and 2 GB. Results: RESULTS.md.
"""

from ml_collections import ConfigDict

from rac_jax import config

VARIANTS = ("", "base", "text", "ce", "balce")


def get_config(variant: str = "") -> ConfigDict:
    """The digits, or one of the comparisons."""
    c = config.default("digits", variant, VARIANTS)
    c.data.name = "digits"
    c.data.image_size = 64
    c.data.crop = 1.0  # the digits fill their 8 × 8 pixels
    c.data.flip = 0.0  # a mirrored digit is not a digit
    c.data.randaugment_layers = 0

    c.model.base.name = c.model.encoder.name = "efficientnet_lite0"
    c.model.base.weights = c.model.encoder.weights = "efficientnet_lite0:imagenet"
    c.model.text.update(width=64, depth=2, heads=4, projection=64)
    c.model.scale = "paper"  # L/2 = 5; √10/2 is too flat for ten classes
    c.model.dtype = "float32"  # bfloat16 is no faster on a CPU

    c.optim.learning_rate = 3e-4
    c.optim.warmup_epochs = 4.0
    c.train.batch_size = 32
    c.train.epochs = 10.0
    c.train.log_every = 15
    c.eval.batch_size = 128
    c.checkpoint.every = 75

    if variant in ("base", "text"):
        c.model.voices = variant
    if variant in ("ce", "balce"):
        c.loss.name = variant
    return c
