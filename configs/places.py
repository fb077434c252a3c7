"""Places365-LT by the paper's recipe: 62,500 training images, 365 scenes, 4,980 down to 5 images each.

    python -m rac_jax.main --config=configs/places.py --config.data.root=DIR
    python -m rac_jax.main --config=configs/places.py:base        # base voice only, LACE
    python -m rac_jax.main --config=configs/places.py:text        # text voice only, LACE
    python -m rac_jax.main --config=configs/places.py:paper       # RAC with the paper's scale, exclusion and search
    python -m rac_jax.main --config=configs/places.py:plus        # frozen B with adapters, votes and prototypes
    python -m rac_jax.main --config=configs/places.py:plus+clip   # with CLIP, B's head started from class names

DIR holds the 256 × 256 images of Places365-Standard and the Places365-LT lists. Weights: AugReg's
ViT-B/16 (ImageNet-21k) for B and E, and OpenAI's CLIP ViT-B/16 file for T, in --config.weights_dir.
If any of them is missing, the run stops within seconds and says which file it needs and where to put it.
Hardware: 8 GPUs (docs/scaling.md has the memory that a step needs). Cost and result: not yet run.
"""

from ml_collections import ConfigDict

from rac_jax import config

VARIANTS = ("", "base", "text", "paper", "plus")


def get_config(variant: str = "") -> ConfigDict:
    """The recipe for Places365-LT, or one of its comparisons."""
    variant, models = config.without_models(variant)
    c = config.default("places", variant, VARIANTS)  # the defaults are the paper's: optimiser, augmentation, k, loss
    c.data.name = "places_lt"
    c.data.workers = 16
    c.model.base.name = c.model.encoder.name = "vit_b16"
    c.model.base.weights = c.model.encoder.weights = "vit_b16:augreg_in21k"
    c.model.text.name = "clip_text"
    c.model.text.weights = "clip_b16"
    c.optim.learning_rate = 5e-5
    c.train.batch_size = 200
    c.train.epochs = 30.0
    c.eval.moving_average = 20
    if variant in ("base", "text"):
        c.model.voices = variant
    if variant == "paper":
        c.model.scale = "paper"
        c.memory.exclude = "first"
        c.memory.ef_search = 16
        c.memory.cut = "token"
    if variant == "plus":
        config.adapted(c, classes=365)
    return config.with_models(c, models)
