"""iNaturalist 2018 by the paper's recipe: 437,513 training images of 8,142 species.

    python -m rac_jax.main --config=configs/inat.py --config.data.root=DIR
    python -m rac_jax.main --config=configs/inat.py:384           # at 384 × 384 pixels
    python -m rac_jax.main --config=configs/inat.py:base          # base voice only, LACE
    python -m rac_jax.main --config=configs/inat.py:paper         # RAC with the paper's scale, exclusion and search
    python -m rac_jax.main --config=configs/inat.py:plus        # frozen B with adapters, votes and prototypes
    python -m rac_jax.main --config=configs/inat.py:plus+clip   # with CLIP, B's head started from class names

DIR holds the competition's images (train_val2018) and its JSON files, or the list files. Weights as in
configs/places.py. If any of them is missing, the run stops within seconds and says which file it needs and where to put
it. Hardware: any number of GPUs; on 8 the paper's batch of 50 is padded to 56 rows.
Cost and result: not yet run.
"""

from ml_collections import ConfigDict

from rac_jax import config

VARIANTS = ("", "384", "base", "paper", "plus")


def get_config(variant: str = "") -> ConfigDict:
    """The recipe for iNaturalist 2018, or one of its comparisons."""
    variant, models = config.without_models(variant)
    c = config.default("inat", variant, VARIANTS)
    c.data.name = "inat2018"
    c.data.workers = 16
    c.data.image_size = 384 if variant == "384" else 224
    c.model.base.name = c.model.encoder.name = "vit_b16"
    c.model.base.weights = c.model.encoder.weights = "vit_b16:augreg_in21k"
    c.model.text.name = "clip_text"
    c.model.text.weights = "clip_b16"
    c.optim.learning_rate = 1e-4
    c.train.batch_size = 50
    c.train.epochs = 20.0
    c.eval.batch_size = 200
    c.eval.moving_average = 300
    c.checkpoint.every = 5000
    if variant == "base":
        c.model.voices = variant
    if variant == "paper":
        c.model.scale = "paper"
        c.memory.exclude = "first"
        c.memory.ef_search = 16
        c.memory.cut = "token"
    if variant == "plus":
        config.adapted(c, classes=8142)
        c.train.epochs = 20.0
    return config.with_models(c, models)
