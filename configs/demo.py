"""demo"""

from ml_collections import ConfigDict

from rac_jax import config


def get_config(variant: str = "") -> ConfigDict:
    c = config.default()
    c.name = "demo"
    c.data.name = "digits"
    c.data.image_size = 64
    c.data.crop = 1.0
    c.data.flip = 0.0
    c.data.randaugment_layers = 0
    c.model.base = c.model.encoder = "efficientnet_lite0"
    c.model.base_weights = c.model.encoder_weights = "efficientnet_lite0:imagenet"
    c.model.text_options = "width=128,depth=2,heads=4"
    c.model.dtype = "float32"
    c.model.scale = "paper"
    c.optim.learning_rate = 1e-3
    c.optim.warmup_epochs = 2.0
    c.train.batch_size = 32
    c.train.epochs = 20.0
    c.eval.batch_size = 128
    c.checkpoint.every = 100
    return c
