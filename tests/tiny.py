"""Real configs made small enough for a test."""

from ml_collections import ConfigDict

from configs import digits
from rac_jax.config import difference

TINY_VIT = {"width": 32, "depth": 2, "heads": 2, "patch": 8}
TINY_TEXT = {"width": 32, "depth": 1, "heads": 2, "projection": 32}


def config(variant: str = "", devices: int = 8) -> ConfigDict:
    """The demo with tiny transformers for B and T, the first blocks of its E, 32-pixel images, a batch of 16.

    E has its published weights: keys of random weights are nearly equal, so that rounding would decide their order.
    """
    c = digits.get_config(variant)
    c.model.base.update(name="vit_ti16", weights="", **TINY_VIT)
    c.model.encoder.depth = 5
    c.model.text.update(TINY_TEXT)
    c.model.drop_path = 0.3
    c.data.image_size = 32
    c.data.randaugment_layers = 2
    c.data.flip = 0.5
    c.train.batch_size = 16
    c.train.log_every = 1
    c.optim.warmup_epochs = 1
    c.eval.show = 0
    c.mesh.data = devices
    return c


def arguments(config: ConfigDict, variant: str = "") -> list[str]:
    """The command-line flags that make this config out of the demo."""
    changed = difference(digits.get_config(variant).to_dict(), config.to_dict())
    return [f"--config=configs/digits.py:{variant}", *(f"--config.{name}={new}" for name, (_, new) in changed.items())]
