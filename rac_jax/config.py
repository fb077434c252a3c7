"""Every setting of a run, once, with its default. `configs/*.py` only override."""

import re
from collections.abc import Collection, Mapping
from typing import Any

from ml_collections import ConfigDict


class ConfigError(ValueError):
    """A setting that cannot work; the message names the field and what would."""


def default(name: str = "run", variant: str = "", variants: Collection[str] = ()) -> ConfigDict:
    """All fields, locked: a name that is not here is an error, and so is a value of another type.

    For the file configs/<name>.py asked for as <name>.py:<variant>, which must be one of `variants`.
    """
    if variant and variant not in variants:
        known = f"there are :{', :'.join(filter(None, variants))}" if any(variants) else "it has no variants"
        raise ConfigError(f"configs/{name}.py:{variant} is unknown; {known}")
    c = ConfigDict()
    c.name = "_".join(filter(None, (name, variant)))  # the run's folder is runs/<name> unless --workdir is given
    c.seed = 0  # initial weights, order of examples, augmentation, stochastic depth
    c.compiled = ""  # the folder of compiled programs; "" = ~/.cache/rac_jax/compiled, "off" = compile at every start
    c.weights_dir = ""  # where weight files lie; "" = the environment variable RAC_JAX_WEIGHTS

    c.data = ConfigDict()
    c.data.name = "digits"  # see rac_jax/data/__init__.py
    c.data.root = ""  # the folder with the images
    c.data.lists = ""  # the folder with the list files; "" = the root
    c.data.text_levels = "species"  # inat2018: a class's text, as in "species" or "genus family order"
    c.data.imbalance = 0.0  # make training long-tailed: first class / last class; 0 = as it is
    c.data.val_share = 0.1  # held out of each class where a folder or table has no splits of its own
    c.data.test_share = 0.2
    c.data.on_bad_image = "error"  # that cannot be decoded: error | skip (decodes all once, at the start)
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
    c.model.branches = "both"  # both (RAC) | base | retrieval
    c.model.base = _encoder("vit_b16")  # B, trained
    c.model.encoder = _encoder("vit_b16")  # E, frozen
    c.model.text = _encoder("clip_text")  # T, trained
    c.model.scale = "sqrt"  # of the fused logits: paper (L/2) | sqrt (√L/2) | learned
    c.model.drop_path = 0.1  # stochastic depth of B
    c.model.dtype = "bfloat16"  # compute: bfloat16 | float32; parameters are float32

    c.memory = ConfigDict()
    c.memory.dir = ""  # "" = <workdir>/memory
    c.memory.k = 30  # neighbours whose texts T reads
    c.memory.metric = "cosine"  # cosine | l2
    c.memory.precision = "auto"  # of the stored keys: float32 | float16 | auto (float16 for the _sq indexes)
    c.memory.index = "hnsw"  # hnsw | hnsw_sq | ivf_sq | flat | device | milvus | auto: see rac_jax/memory/index.py
    c.memory.device_dtype = "bfloat16"  # index "device": keys on the devices: bfloat16 | float16 | float32 (exact)
    c.memory.milvus_uri = ""  # index "milvus": the server, as http://host:19530, or a file for milvus-lite
    c.memory.hnsw_m = 32  # links of a node
    c.memory.ef_construction = 40  # candidates while the graph is built
    c.memory.ef_search = 0  # candidates while it is searched; 0 = max(64, 4 k); 16 is FAISS's own, and the paper's
    c.memory.cut = "snippet"  # what T's window cannot hold is cut by: snippet | token (CLIP's own way, and the paper's)
    # callback | pipelined (the same neighbours, looked up a step ahead) | cached (once, for the plain image) |
    # auto: pipelined on GPUs and TPUs, where a callback would stall the device, and callback on CPUs
    c.memory.lookup = "auto"
    c.memory.cache = ""  # lookup "cached": the folder of what was found; "" = <workdir>/neighbours
    c.memory.keep = ConfigDict()  # use only a part of the rows, drawn by data.seed: first classes, then rows
    c.memory.keep.classes = 1.0  # share of the classes
    c.memory.keep.share = 1.0  # share of the rows of those classes
    c.memory.keep.per_class = 0  # at most so many rows of each class; 0 = all
    c.memory.exclude = "id"  # in training, leave out: id (the query itself) | first | none
    c.memory.duplicates = 0.9999  # with exclude "id", leave out rows of other sources with a key as near; 0 = off
    c.memory.encode_batch = 128  # images that E encodes at once while the memory is built

    c.loss = ConfigDict()
    c.loss.name = "lace"  # lace | ce | balce | ldam (one branch with a cosine head) | ldam_paper (its margin added)
    c.loss.tau = 1.0  # strength of LACE's logit adjustment
    c.loss.reweight = "none"  # none | inverse_sqrt | inverse_log, by class count
    c.loss.smoothing = 0.1  # label smoothing

    c.optim = ConfigDict()
    c.optim.learning_rate = 5e-5
    c.optim.min_learning_rate = 1e-7  # where warm-up starts and the cosine ends
    c.optim.base_learning_rate_factor = 1.0  # B's rate without its head, relative to learning_rate
    c.optim.text_learning_rate_factor = 1.0  # T's and its head's
    c.optim.frozen = ""  # what is not trained: a pattern for the beginning of paths, as r"base\.(stem|blocks\.[0-9]\.)"
    c.optim.warmup_epochs = 5.0
    c.optim.weight_decay = 0.02  # none on biases, norms, class token and positions
    c.optim.beta1 = 0.9
    c.optim.beta2 = 0.999
    c.optim.epsilon = 1e-8
    c.optim.clip = 1.0  # global norm of the gradient

    c.train = ConfigDict()
    c.train.batch_size = 200  # global: over all devices
    c.train.accumulate = 1  # parts that a batch is worked through in, for memory; the same result as in one
    c.train.epochs = 30.0
    c.train.steps = 0  # stop here (0 = at the last epoch); the schedule spans the epochs all the same
    c.train.log_every = 20  # steps

    c.eval = ConfigDict()
    c.eval.batch_size = 200  # global
    c.eval.split = "test"
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
    e.activation = ""  # gelu | gelu_tanh | quick_gelu
    e.epsilon = 0.0  # of layer norms
    e.batch_norm = ""  # B with batch norms: frozen | update
    e.remat = False  # compute activations again in the backward pass instead of keeping them
    return e


def options(encoder: ConfigDict) -> dict[str, Any]:
    """The options of a model that are set."""
    return {name: value for name, value in encoder.items() if name not in ("name", "weights") and value}


CHOICES = {
    "data.interpolation": ("bicubic", "bilinear", "nearest"),
    "data.train_interpolation": ("random", "bicubic", "bilinear", "nearest"),
    "data.on_bad_image": ("error", "skip"),
    "model.branches": ("both", "base", "retrieval"),
    "model.scale": ("paper", "sqrt", "learned"),
    "model.dtype": ("bfloat16", "float32"),
    "memory.metric": ("cosine", "l2"),
    "memory.precision": ("auto", "float32", "float16"),
    "memory.index": ("hnsw", "hnsw_sq", "ivf_sq", "flat", "device", "milvus", "auto"),
    "memory.device_dtype": ("bfloat16", "float16", "float32"),
    "memory.cut": ("snippet", "token"),
    "memory.lookup": ("auto", "callback", "pipelined", "cached"),
    "memory.exclude": ("id", "first", "none"),
    "loss.name": ("lace", "ce", "balce", "ldam", "ldam_paper"),
    "loss.reweight": ("none", "inverse_sqrt", "inverse_log"),
}
AT_LEAST_ONE = (
    "data.image_size", "memory.k",
    "memory.hnsw_m", "memory.ef_construction", "memory.encode_batch", "train.batch_size", "train.accumulate",
    "train.log_every", "eval.batch_size", "checkpoint.every", "checkpoint.keep",
)  # fmt: skip
NOT_NEGATIVE = (
    "seed", "data.seed", "data.imbalance", "data.workers", "memory.ef_search", "memory.keep.per_class",
    "loss.tau", "optim.learning_rate",
    "optim.min_learning_rate", "optim.base_learning_rate_factor", "optim.text_learning_rate_factor",
    "optim.warmup_epochs",
    "optim.weight_decay", "train.steps", "eval.every", "eval.moving_average", "eval.show",
)  # fmt: skip
SHARES = (
    "data.crop",  # above 1 the image would be padded with black
    "memory.keep.classes",
    "memory.keep.share",
    "memory.duplicates",
    "data.flip",
    "data.val_share",
    "data.test_share",
    "model.drop_path",
    "loss.smoothing",
    "optim.beta1",
    "optim.beta2",
)
POSITIVE = (
    "data.crop",
    "memory.keep.classes",
    "memory.keep.share",
    "optim.epsilon",
    "optim.clip",
    "train.epochs",
)

# Fields that may change between two starts of one run: they change no number that it computes.
FREE = (
    "name", "compiled", "weights_dir", "data.root", "data.lists", "data.workers", "memory.dir", "memory.cache",
    "memory.encode_batch", "train.steps", "train.accumulate", "train.log_every", "eval", "checkpoint", "mesh",
)  # fmt: skip


def validate(config: ConfigDict, *, devices: int) -> None:
    """Raise ConfigError for the first value that cannot work on this many devices."""
    for name, known in CHOICES.items():
        _require(field(config, name) in known, config, name, f"one of {', '.join(known)}")
    for name in AT_LEAST_ONE:
        _require(field(config, name) >= 1, config, name, "1 or more")
    for name in NOT_NEGATIVE:
        _require(field(config, name) >= 0, config, name, "0 or more")
    for name in SHARES:
        _require(0 <= field(config, name) <= 1, config, name, "between 0 and 1")
    for name in POSITIVE:
        _require(field(config, name) > 0, config, name, "above 0")
    used = config.mesh.data * config.mesh.fsdp if config.mesh.data > 0 else devices
    _require(
        config.mesh.fsdp >= 1 and devices % config.mesh.fsdp == 0,
        config,
        "mesh.fsdp",
        f"a divisor of the {devices} devices",
    )
    _require(
        config.mesh.data == -1 or 1 <= used <= devices,
        config,
        "mesh.data",
        f"-1 (all that are left) or at most {devices // config.mesh.fsdp}, for there are {devices} devices",
    )
    size, update = config.train.batch_size, config.model.base.batch_norm == "update"
    most, near = -(-size // used), max(used, round(size / used) * used)
    _require(
        config.train.accumulate <= most,
        config, "train.accumulate", f"at most {most}, a device's share of the batch",
    )  # fmt: skip
    _require(
        not update or config.train.accumulate == 1,
        config, "train.accumulate", "1 with batch_norm=update: the statistics are those of a whole batch",
    )  # fmt: skip
    _require(
        not update or size % used == 0,
        config, "train.batch_size", f"a multiple of the {used} devices, as {near} is, with batch_norm=update: "
        "the statistics are those of the batch alone",
    )  # fmt: skip
    _require(
        config.loss.name not in ("ldam", "ldam_paper") or config.model.branches != "both",
        config, "loss.name", "lace, ce or balce with model.branches=both: LDAM's margins are in cosines of one branch",
    )  # fmt: skip
    _require(
        config.loss.name != "balce" or config.loss.reweight == "none",
        config, "loss.reweight", "none with loss.name=balce, which has weights of its own (1 / class count)",
    )  # fmt: skip
    _require(
        _is_pattern(config.optim.frozen),
        config, "optim.frozen", r"a regular expression for the beginning of paths, as base\.stem",
    )  # fmt: skip
    _require(
        config.memory.index != "milvus" or bool(config.memory.milvus_uri),
        config, "memory.milvus_uri", "the server's address for memory.index=milvus, as http://localhost:19530",
    )  # fmt: skip
    _require(
        config.memory.lookup != "pipelined" or config.memory.index != "device",
        config, "memory.lookup", "auto, callback or cached: with memory.index=device the host searches nothing",
    )  # fmt: skip
    _require(
        config.optim.warmup_epochs <= config.train.epochs,
        config, "optim.warmup_epochs", f"at most train.epochs ({config.train.epochs})",
    )  # fmt: skip


def _require(holds: bool, config: ConfigDict, name: str, wanted: str) -> None:
    if not holds:
        raise ConfigError(f"config.{name} is {field(config, name)!r}; it must be {wanted}")


def _is_pattern(text: str) -> bool:
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError):
        return False
    return True


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
