"""Every setting of a run, once, with its default and the values it may have. `configs/*.py` only override."""

import math
from collections.abc import Collection, Mapping
from typing import Any

from ml_collections import ConfigDict

VOICES = ("base", "text", "vote", "prototype")
KEYS = "keys"  # config.model.base.name: B = E
LOWER_BLOCKS = r"base\.(stem|blocks\.([0-9]|10)\.)"  # of EfficientNet-Lite0: frozen where only the others are trained
# Of answers with a trained E: log-likelihood −1.37 instead of −1.46, mean over classes, on the images of `tuned`
TUNED_SHARPNESS = 0.8


class ConfigError(ValueError):
    """A setting that cannot work. The message names the field and what would work."""


def default(name: str = "run", variant: str = "", variants: Collection[str] = ()) -> ConfigDict:
    """All fields, locked: an unknown field is an error, and so is a value of another type.

    `name` and `variant` are those of the config file, configs/<name>.py:<variant>; the variant must be in `variants`.
    """
    if variant and variant not in variants:
        known = f"there are :{', :'.join(filter(None, variants))}" if any(variants) else "it has no variants"
        raise ConfigError(f"configs/{name}.py:{variant} is unknown; {known}")
    c = ConfigDict()
    c.name = "_".join(filter(None, (name, variant)))  # the run's folder is runs/<name> unless --workdir is given
    c.seed = 0  # initial weights, order of examples, augmentation, stochastic depth
    c.compiled = ""  # the folder of compiled programs; "" = ~/.cache/rac_jax/compiled, "off" = compile at every start
    c.weights_dir = ""  # the folder of weight files; "" = the environment variable RAC_JAX_WEIGHTS

    c.data = ConfigDict()
    c.data.name = "digits"  # digits, groceries, folder, table:FILE and others: see KNOWN in rac_jax/data/__init__.py
    c.data.root = ""  # the folder with the images
    c.data.lists = ""  # the folder with the list files; "" = the root
    c.data.text_levels = "species"  # inat2018: a class's text, as in "species" or "genus family order"
    c.data.imbalance = 0.0  # make training long-tailed: first class / last class; 0 = as it is
    c.data.images = 0  # so many training images in all, at data.imbalance, of the images that there are; 0 = all
    c.data.frequent = 0  # use only so many classes, those with most training images; 0 = all
    c.data.val_share = 0.1  # held out of each class where a folder or table has no splits of its own; 0 = none
    c.data.test_share = 0.2
    c.data.keep_share = 1.0  # train on this share of each class's images (at least one), drawn by data.seed
    c.data.keep_classes = 1.0  # use only this share of the classes, drawn by data.seed
    c.data.caption = ""  # a class's text, as "a photo of a {name}, a kind of {group} as {others}"; "" = its name
    c.data.label_noise = 0.0  # share of the training images with a wrong label, drawn by data.seed
    c.data.noise_in = "both"  # where those are wrong: training (the loss) | memory | both
    c.data.on_bad_image = "error"  # an image that cannot be decoded: error | skip (decodes all once, at the start)
    c.data.seed = 0  # how a data set that is split or made long-tailed here is drawn
    c.data.image_size = 224  # what B and E see
    c.data.crop = 0.95  # evaluation: resize the shorter side to image_size / crop, then cut the centre; at most 1
    c.data.crop_scale = (0.75, 1.0)  # training: share of the image's area that a crop keeps
    c.data.crop_ratio = (0.75, 1.33)  # training: width / height of a crop
    c.data.flip = 0.5  # training: probability of a left-right flip
    c.data.interpolation = "bicubic"  # evaluation: bicubic | bilinear | nearest
    c.data.train_interpolation = "random"  # training: the same, or random (bilinear or bicubic)
    c.data.randaugment_layers = 3  # operations drawn for each image; 0 = none
    c.data.randaugment_magnitude = 1.0  # 0 to 10
    c.data.randaugment_noise = 0.5  # standard deviation of the magnitude
    c.data.workers = 0  # input processes; 0 = threads of this one

    c.model = ConfigDict()
    c.model.voices = "base+text"  # what answers, joined by "+": base, text, vote, prototype; see rac_jax/models/rac.py
    c.model.fusion = (
        "paper"  # of several voices: paper (unit norms; base+text only) | sum (weighted mean of log-probabilities)
    )
    c.model.weights = ConfigDict()  # of the voices in fusion "sum"; only their ratios matter
    c.model.weights.update(base=1.0, text=1.0, vote=0.5, prototype=1.0)
    c.model.sharpness = 1.0  # of fusion "sum": a factor of its logits; below 1 the answer is less certain
    c.model.base = _encoder("vit_b16")  # B, trained; the name "keys" means B = E: its head reads E's keys
    c.model.encoder = _encoder("vit_b16")  # E, frozen
    c.model.text = _encoder("clip_text")  # T, trained
    c.model.head = "linear"  # of base and text: linear | cosine
    c.model.head_scale = 30.0  # of the logits of cosine heads
    # The start of the base head: random | means (class means of E's keys: B must start as E) | text (features of
    # model.prompt for each class: B is CLIP's image tower, model.text its text tower, with the same weights)
    c.model.head_start = "random"
    # The start of the text head: random | memory (a discriminant of what T, as it starts, reads for training images)
    c.model.text_start = "random"
    c.model.prompt = "a photo of a {}."  # head_start "text": {} stands for the class
    c.model.scale = "learned"  # of fusion "paper": paper (L/2) | sqrt (√L/2) | learned, from √L/2 on
    c.model.vote = ConfigDict()
    c.model.vote.temperature = 0.05  # a neighbour's weight is exp(similarity / temperature)
    c.model.vote.tau = 1.0  # votes are divided by (rows of the class)^tau
    c.model.vote.epsilon = 1e-3  # share that every class has at least
    # a row counts 1 / (1 + how often it was one of so many nearest of an image of another class); 0 = all alike
    c.model.vote.reliability = 0
    c.model.prototype = ConfigDict()
    c.model.prototype.scale = 25.0  # of the cosines
    c.model.prototype.rank = 0  # of a learned map that all classes share; 0 = none
    c.model.drop_path = 0.1  # stochastic depth of B
    c.model.dtype = "bfloat16"  # compute: bfloat16 | float32; parameters are float32

    c.memory = ConfigDict()
    c.memory.dir = ""  # "" = <workdir>/memory
    c.memory.kept_keys = ""  # a folder that keeps E's keys of plain images for all runs (no thumbnails then); "" = none
    c.memory.k = 30  # neighbours whose texts T reads
    c.memory.metric = "cosine"  # cosine | l2
    c.memory.precision = "auto"  # of the stored keys: float32 | float16 | auto (float16 for the _sq indexes)
    c.memory.index = "hnsw"  # hnsw | hnsw_sq | ivf_sq | ivf_rabitq | flat | device | milvus | auto: see memory/index/
    c.memory.device_dtype = "bfloat16"  # index "device": keys on the devices: bfloat16 | float16 | float32 (exact)
    c.memory.milvus_uri = ""  # index "milvus": the server, as http://host:19530, or a file for milvus-lite
    c.memory.hnsw_m = 32  # links of a node
    c.memory.ef_construction = 40  # candidates while the graph is built
    c.memory.ef_search = 0  # candidates while it is searched; 0 = max(64, 4 k); 16 is FAISS's own, and the paper's
    c.memory.cut = "snippet"  # what T's window cannot hold is cut by: snippet | token (CLIP's own way, and the paper's)
    # callback | pipelined (the same neighbours, looked up a step ahead) | cached (once, for the plain image) |
    # auto: pipelined on GPUs and TPUs, where a callback would stall the device, and callback on CPUs
    c.memory.lookup = "auto"
    c.memory.cache = ""  # lookup "cached": the folder of what was computed once; "" = <workdir>/neighbours
    c.memory.keep = ConfigDict()  # use only a part of the rows, drawn by data.seed: first classes, then rows
    c.memory.keep.classes = 1.0  # share of the classes
    c.memory.keep.share = 1.0  # share of the rows of those classes
    c.memory.keep.per_class = 0  # at most so many rows of each class; 0 = all
    c.memory.exclude = "id"  # in training, neighbours leave out: id (the query itself) | first | none
    c.memory.duplicates = 0.9999  # with exclude "id", leave out rows of other sources with a key as near; 0 = off
    c.memory.encode_batch = 128  # images that E encodes at once while the memory is built
    c.memory.thumbnails = -1  # side in pixels of a small JPEG of each row; 0 = none; -1 = 96, up to a million rows

    # E may be trained for the data before the memory is made: B alone is trained, from E's weights, and E becomes the
    # mean of the published and the trained weights (rac_jax/start/tuning.py)
    c.tune = ConfigDict()
    c.tune.share = 0.0  # of the trained weights in the mean; 0 = E stays as it is published
    c.tune.frozen = ""  # what of B is not trained, as optim.frozen
    c.tune.views = 0  # as train.views: fixed views, whose frozen blocks are computed once; 0 = new augmentations
    c.tune.epochs = 10.0
    c.tune.batch_size = 128  # global
    c.tune.learning_rate = 1e-3  # of AdamW
    c.tune.warmup_epochs = 0.5

    c.loss = ConfigDict()
    c.loss.name = "lace"  # lace | ce | balce | ldam (one voice, with cosines) | ldam_paper (its margin added)
    c.loss.tau = 1.0  # strength of LACE's logit adjustment
    c.loss.reweight = "none"  # none | inverse_sqrt | inverse_log, by class count
    c.loss.smoothing = 0.1  # label smoothing
    # of fusion "paper": weight of each voice's own loss beside that of the fused answer; the paper has none. A text
    # encoder from scratch may need it: see docs/method.md
    c.loss.own = 0.0

    c.optim = ConfigDict()
    c.optim.name = "adamw"  # adamw | sgd (momentum beta1; decay is part of the gradient)
    c.optim.learning_rate = 5e-5
    c.optim.min_learning_rate = 1e-7  # where warm-up starts and the cosine ends
    c.optim.base_learning_rate_factor = 1.0  # B's rate without its head, relative to learning_rate
    c.optim.text_learning_rate_factor = 1.0  # the rate of T and its head
    c.optim.frozen = ""  # what is not trained: a pattern for the beginning of paths, as r"base\.(stem|blocks\.[0-9]\.)"
    c.optim.warmup_epochs = 5.0
    c.optim.weight_decay = 0.02  # none on biases, norms, class token and positions
    c.optim.beta1 = 0.9
    c.optim.beta2 = 0.999
    c.optim.epsilon = 1e-8
    c.optim.clip = 1.0  # global norm of the gradient

    c.train = ConfigDict()
    c.train.batch_size = 200  # global: over all devices
    # 0 = a new augmentation at every step. V = each image has V fixed views, itself and V − 1 augmented ones, used in
    # turn: E's keys and B's blocks below the first that is trained (optim.frozen) are computed once for each view, in
    # the folder memory.cache, and training decodes no image. B starts from E's weights; memory.lookup is "cached".
    c.train.views = 0
    c.train.accumulate = 1  # parts that a batch is worked through in, for memory; the same result as in one
    c.train.epochs = 30.0  # 0 = no training
    c.train.steps = 0  # stop here (0 = at the last epoch); the schedule spans the epochs all the same
    c.train.log_every = 20  # steps
    c.train.then = ""  # the config that trains B after this run, as configs/folder.py:finetune: its time is estimated
    c.train.calibrate_sets = True  # after training, keep what sets of labels need (predict --coverage)
    c.train.calibrate_new = False  # after training, find the offset of classes without training (on E's keys)

    c.eval = ConfigDict()
    c.eval.batch_size = 200  # global
    c.eval.split = "test"
    c.eval.views = 1  # of an image: 1 | 5 (five crops: E's keys and B's logits are averaged), in predictions too
    c.eval.every = 0  # steps between evaluations on val while training; 0 = none
    c.eval.moving_average = 0  # classes in the moving average of the accuracy by class; 0 = a tenth of all classes
    c.eval.show = 4  # retrieval views: so many of random, worst and rescued images; 0 = none

    c.checkpoint = ConfigDict()
    c.checkpoint.every = 1000  # steps; the last step is always saved
    c.checkpoint.keep = 2  # the newest ones

    c.mesh = ConfigDict()
    c.mesh.data = -1  # devices over which the batch is split; -1 = all that are left
    c.mesh.fsdp = 1  # devices over which parameters and optimiser state are split too
    return c.lock()


def instant(c: ConfigDict) -> None:
    """Answers from the memory alone: votes and prototypes on E's keys. Training takes seconds, and no image is decoded.

    The values were chosen on held-out training images of CIFAR-100-LT (EfficientNet-Lite0, 128 pixels).
    """
    c.model.voices, c.model.fusion = "vote+prototype", "sum"
    c.model.weights.vote = 0.75
    c.model.prototype.rank = 32
    c.model.dtype = "float32"
    c.memory.k, c.memory.lookup = 50, "cached"
    c.loss.smoothing = 0.0
    c.optim.update(name="sgd", learning_rate=0.05, min_learning_rate=0.0, warmup_epochs=0.0, weight_decay=0.01)
    c.optim.clip = 1e3
    c.train.update(batch_size=128, epochs=20.0, calibrate_new=True)
    c.tune.update(frozen=LOWER_BLOCKS, views=4)  # used if tune.share is set


def tuned(c: ConfigDict) -> None:
    """`instant` with an E that was trained for the data first: the upper blocks, on four views of each image.

    The values were chosen on held-out training images of CIFAR-100-LT (EfficientNet-Lite0, 128 pixels).
    """
    instant(c)
    c.tune.share = 0.5
    c.model.sharpness = TUNED_SHARPNESS


def finetuned(c: ConfigDict) -> None:
    """B's upper blocks trained with the memory's voices beside it, in a third of the time of the paper's RAC.

    The lower blocks are frozen and shared with E; their output is computed once for a few views of each image.
    """
    c.model.voices, c.model.fusion = "base+vote+prototype", "sum"
    c.model.head, c.model.head_start, c.model.drop_path = "cosine", "means", 0.0
    c.model.prototype.rank = 32
    c.model.dtype = "float32"
    c.memory.k, c.memory.lookup = 50, "cached"
    c.loss.smoothing = 0.0
    c.optim.frozen = LOWER_BLOCKS
    c.optim.update(learning_rate=1e-3, min_learning_rate=0.0, warmup_epochs=0.5, weight_decay=5e-4)
    c.train.update(views=4, epochs=8.0, batch_size=64, then="", calibrate_new=True)


def on_keys(c: ConfigDict) -> None:
    """The paper's RAC with B = E: base and text in the paper's fusion, the base head on E's keys.

    No image is decoded in training, and T is small: a run takes about a minute on a CPU. The values were chosen on
    held-out training images of CIFAR-100-LT (EfficientNet-Lite0, 128 pixels).
    """
    c.model.voices, c.model.fusion = "base+text", "paper"
    c.model.base.update(name=KEYS, weights="")
    c.model.text.update(width=64, depth=1, heads=4, projection=64)
    c.model.dtype = "float32"
    c.memory.lookup = "cached"
    c.loss.smoothing = 0.0
    c.optim.update(learning_rate=0.03, text_learning_rate_factor=0.33, min_learning_rate=0.0, warmup_epochs=0.5)


MODELS = ("lite2", "minilm", "clip")  # words that select other models in the variant of a config, as :rac+lite2+minilm


def without_models(variant: str) -> tuple[str, tuple[str, ...]]:
    """A variant without the words of MODELS, and those words."""
    words = variant.split("+")
    return "+".join(word for word in words if word not in MODELS), tuple(word for word in words if word in MODELS)


def with_models(c: ConfigDict, words: Collection[str]) -> ConfigDict:
    """The config with other models: lite2 (E, B: EfficientNet-Lite2), minilm (T: MiniLM, pretrained), clip (CLIP)."""
    if "lite2" in words:
        for role in ("encoder", "base"):
            if c.model[role].name != KEYS:
                c.model[role].update(name="efficientnet_lite2", weights="efficientnet_lite2:imagenet")
        for room in (c.optim, c.tune):
            if room.frozen:
                room.frozen = r"base\.(stem|blocks\.([0-9]|1[0-4])\.)"  # up to the last stage but one, as for Lite0
    if "clip" in words:
        for role in ("encoder", "base"):
            c.model[role].update(name="clip_image_b16", weights="clip_b16")
        c.model.text.update(name="clip_text", weights="clip_b16", width=0, depth=0, heads=0, projection=0)
        c.model.head_start = "text" if c.model.head == "cosine" else c.model.head_start
    if "minilm" in words:
        if "text" not in voices(c):
            raise ConfigError(f"{c.name} has no voice that reads texts; +minilm needs a variant with one, as :rac")
        c.model.text.update(name="minilm", weights="minilm", width=0, depth=0, heads=0, projection=0)
        c.optim.text_learning_rate_factor = min(0.2, 1e-4 / c.optim.learning_rate)  # gently: they are pretrained
    c.name = "_".join((c.name, *words))
    c.train.then = "+".join((c.train.then, *words)) if c.train.then else ""
    return c


def adapted(c: ConfigDict, classes: int, blocks: int = 12) -> None:
    """A frozen ViT with adapters (the recipe of LIFT, ICML 2024), and the memory's voices beside it.

    The width of the adapters grows with the number of classes, as in LIFT.
    """
    c.model.voices, c.model.fusion = "base+vote+prototype", "sum"
    c.model.base.adapter = max(1, 2 ** int(math.log2(classes / (2 * blocks))))
    c.model.head, c.model.head_start, c.model.drop_path = "cosine", "means", 0.0
    c.model.head_scale, c.model.prototype.rank = 25.0, 32
    c.memory.k, c.memory.lookup = 50, "cached"
    c.data.update(crop=0.875, crop_scale=(0.08, 1.0), randaugment_layers=0)
    c.loss.smoothing = 0.0
    c.optim.frozen = r"base\.(?!blocks\.\d+\.adapter)"
    c.optim.update(name="sgd", learning_rate=0.01, min_learning_rate=0.0, warmup_epochs=0.0, weight_decay=5e-4)
    c.optim.clip = 1e3
    c.train.update(batch_size=128, epochs=10.0, calibrate_new=True)


def _encoder(name: str) -> ConfigDict:
    """A model, its weights and its options. An option that is 0 or "" has the value that the model's name implies."""
    e = ConfigDict()
    e.name = name  # `python -m rac_jax.models` lists the names
    e.weights = ""  # a name or a file; "" = from scratch
    e.width = 0  # of a token; for glove, of a word's vector
    e.depth = 0  # number of blocks
    e.heads = 0  # of attention
    e.mlp_width = 0  # of the hidden layer in a block
    e.patch = 0  # ViT: side of a patch in pixels
    e.projection = 0  # CLIP: width of the last linear layer
    e.adapter = 0  # ViT as B: width of a trained layer beside each MLP, the rest being frozen by optim.frozen
    e.activation = ""  # gelu | gelu_tanh | quick_gelu
    e.epsilon = 0.0  # of layer norms
    e.batch_norm = ""  # B with batch norms: frozen | update
    e.remat = False  # compute activations again in the backward pass instead of keeping them
    return e


def voices(config: ConfigDict) -> tuple[str, ...]:
    """The voices that answer, in the order of VOICES."""
    speaking = config.model.voices.split("+")
    return tuple(voice for voice in VOICES if voice in speaking)


def roles(config: ConfigDict) -> tuple[str, ...]:
    """The encoders that the voices need: some of base (B), encoder (E) and text (T)."""
    speaking = voices(config)
    trained_base = "base" in speaking and config.model.base.name != KEYS
    needed = {"base": trained_base, "encoder": speaking != ("base",) or not trained_base, "text": "text" in speaking}
    return tuple(role for role, wanted in needed.items() if wanted)


def options(encoder: ConfigDict) -> dict[str, Any]:
    """The options of a model that are set."""
    return {name: value for name, value in encoder.items() if name not in ("name", "weights") and value}


# Fields that may change between two starts of one run, because no number that it computes depends on them.
# Whether the data are the same is checked by data/record.py.
FREE = (
    "name", "compiled", "weights_dir", "data.root", "data.lists", "data.keep_share", "data.keep_classes",
    "data.workers", "memory.dir", "memory.cache", "memory.kept_keys", "memory.encode_batch", "memory.thumbnails",
    "train.calibrate_sets", "train.steps", "train.accumulate", "train.log_every", "train.then", "eval", "checkpoint",
    "mesh",
)  # fmt: skip


def field(config: Mapping[str, Any], name: str) -> Any:
    """The value of a dotted field name."""
    for part in name.split("."):
        config = config[part]
    return config


def names(config: Mapping[str, Any], prefix: str = "") -> list[str]:
    """The dotted names of all fields."""
    result: list[str] = []
    for name, value in config.items():
        result += names(value, f"{prefix}{name}.") if isinstance(value, ConfigDict) else [prefix + name]
    return result


def changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The differences between two configs that make them different runs."""
    return {
        name: values
        for name, values in difference(old, new).items()
        if not any(name == free or name.startswith(free + ".") for free in FREE)
        and not (name == "memory.lookup" and "cached" not in values)  # the others find the same neighbours
    }


def difference(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """The fields, by dotted name, in which two nested mappings differ: (old value, new value)."""
    result: dict[str, tuple[Any, Any]] = {}
    for name in sorted({*old, *new}):
        a, b = old.get(name), new.get(name)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            result |= difference(a, b, f"{prefix}{name}.")
        elif a != b:
            result[prefix + name] = (a, b)
    return result
