"""Which values each field of the config may have, alone and together."""

import dataclasses
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

from ml_collections import ConfigDict

from rac_jax.config import KEYS, VOICES, ConfigError, field, names, roles, voices


@dataclasses.dataclass(frozen=True)
class Rule:
    """Which values a field may have, and how the message for any other value describes them."""

    allows: Callable[[Any], bool]
    words: str


def _choice(*known: str) -> Rule:
    return Rule(lambda value: value in known, f"one of {', '.join(map(str, known))}")


def _integer(least: int, most: int = 2**31 - 1) -> Rule:
    words = f"a whole number, between {least} and {most}"
    return Rule(lambda value: type(value) is int and least <= value <= most, words)


def _finite(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _number(least: float, most: float) -> Rule:
    return Rule(lambda value: _finite(value) and least <= value <= most, f"between {least:g} and {most:g}")


def _above_0(most: float, *, least: float = 1e-30) -> Rule:
    return Rule(lambda value: _finite(value) and least <= value <= most, f"above 0 and at most {most:g}")


def _below_1() -> Rule:
    return Rule(lambda value: _finite(value) and 0 <= value < 1, "0 or more and below 1")


def _interval(least: float, most: float) -> Rule:
    def allows(value: Any) -> bool:
        pair = isinstance(value, tuple) and len(value) == 2 and all(map(_finite, value))
        return pair and least <= value[0] <= value[1] <= most

    return Rule(allows, f"two numbers (low, high) with {least:g} <= low <= high <= {most:g}")


def _is_pattern(value: Any) -> bool:
    try:
        return isinstance(value, str) and re.compile(value) is not None
    except (re.error, RecursionError, OverflowError):
        return False


def _are_voices(value: Any) -> bool:
    speaking = value.split("+") if isinstance(value, str) else []
    return bool(speaking) and len(set(speaking)) == len(speaking) and set(speaking) <= set(VOICES)


SWITCH = Rule(lambda value: isinstance(value, bool), "True or False")
TEXT = Rule(lambda value: isinstance(value, str) and value.isprintable(), "a text of one line")
NAME = Rule(lambda value: isinstance(value, str) and value.isprintable() and value.strip() != "", "a name")
PATTERN = Rule(_is_pattern, r"a regular expression for the beginning of paths, as base\.stem")
SHARE = _number(0, 1)
SEED = _integer(0)
BATCH = _integer(1, 2**17)

ENCODER = {
    "name": NAME,
    "weights": TEXT,
    "width": _integer(0, 2**16),
    "depth": _integer(0, 1000),
    "heads": _integer(0, 1024),
    "mlp_width": _integer(0, 2**18),
    "patch": _integer(0, 2**12),
    "projection": _integer(0, 2**16),
    "adapter": _integer(0, 2**12),
    "activation": _choice("", "gelu", "gelu_tanh", "quick_gelu"),
    "epsilon": _number(0, 1),
    "batch_norm": _choice("", "frozen", "update"),
    "remat": SWITCH,
}

RULES: dict[str, Rule] = {
    "name": NAME,
    "seed": SEED,
    "compiled": TEXT,
    "weights_dir": TEXT,
    "data.name": NAME,
    "data.root": TEXT,
    "data.lists": TEXT,
    "data.text_levels": NAME,
    "data.imbalance": _number(0, 1e6),
    "data.images": _integer(0),
    "data.frequent": _integer(0),
    "data.val_share": _below_1(),
    "data.test_share": _below_1(),
    "data.keep_share": _above_0(1),
    "data.keep_classes": _above_0(1),
    "data.caption": TEXT,
    "data.label_noise": _below_1(),
    "data.noise_in": _choice("training", "memory", "both"),
    "data.on_bad_image": _choice("error", "skip"),
    "data.seed": SEED,
    "data.image_size": _integer(1, 4096),
    "data.crop": _number(0.1, 1),  # above 1 the image would be padded with black
    "data.crop_scale": _interval(1e-3, 1),
    "data.crop_ratio": _interval(1e-2, 100),
    "data.flip": SHARE,
    "data.interpolation": _choice("bicubic", "bilinear", "nearest"),
    "data.train_interpolation": _choice("random", "bicubic", "bilinear", "nearest"),
    "data.randaugment_layers": _integer(0, 100),
    "data.randaugment_magnitude": _number(0, 10),
    "data.randaugment_noise": _number(0, 10),
    "data.workers": _integer(0, 1024),
    "model.voices": Rule(_are_voices, f"some of {', '.join(VOICES)}, joined by +"),
    "model.fusion": _choice("paper", "sum"),
    **{f"model.weights.{voice}": _number(0, 100) for voice in VOICES},
    "model.vote.temperature": _above_0(1e3, least=1e-3),
    "model.vote.tau": _number(0, 10),
    "model.vote.epsilon": _above_0(1, least=1e-12),
    "model.vote.reliability": _integer(0, 1000),
    "model.prototype.scale": _above_0(1e4),
    "model.prototype.rank": _integer(0, 2**14),
    **{f"model.{role}.{name}": rule for role in ("base", "encoder", "text") for name, rule in ENCODER.items()},
    "model.sharpness": _above_0(1e4),
    "model.head": _choice("linear", "cosine"),
    "model.head_scale": _above_0(1e4),
    "model.head_start": _choice("random", "means", "text"),
    "model.text_start": _choice("random", "memory"),
    "model.prompt": Rule(lambda value: TEXT.allows(value) and value.count("{}") == 1, "a text of one line with one {}"),
    "model.scale": _choice("paper", "sqrt", "learned"),
    "model.drop_path": _below_1(),
    "model.dtype": _choice("bfloat16", "float32"),
    "memory.dir": TEXT,
    "memory.kept_keys": TEXT,
    "memory.k": _integer(1, 2**14),
    "memory.metric": _choice("cosine", "l2"),
    "memory.precision": _choice("auto", "float32", "float16"),
    "memory.index": _choice("hnsw", "hnsw_sq", "ivf_sq", "ivf_rabitq", "flat", "device", "milvus", "auto"),
    "memory.device_dtype": _choice("bfloat16", "float16", "float32"),
    "memory.milvus_uri": TEXT,
    "memory.hnsw_m": _integer(2, 512),  # FAISS crashes on 1
    "memory.ef_construction": _integer(1, 2**16),
    "memory.ef_search": _integer(0, 2**20),
    "memory.cut": _choice("snippet", "token"),
    "memory.lookup": _choice("auto", "callback", "pipelined", "cached"),
    "memory.cache": TEXT,
    "memory.keep.classes": _above_0(1),
    "memory.keep.share": _above_0(1),
    "memory.keep.per_class": _integer(0),
    "memory.exclude": _choice("id", "first", "none"),
    "memory.duplicates": SHARE,
    "memory.encode_batch": BATCH,
    "memory.thumbnails": _integer(-1, 1024),
    "tune.share": SHARE,
    "tune.frozen": PATTERN,
    "tune.views": _integer(0, 1000),
    "tune.epochs": _above_0(1e4),
    "tune.batch_size": BATCH,
    "tune.learning_rate": _number(0, 1e3),
    "tune.warmup_epochs": _number(0, 1e4),
    "loss.name": _choice("lace", "ce", "balce", "ldam", "ldam_paper"),
    "loss.tau": _number(0, 100),
    "loss.reweight": _choice("none", "inverse_sqrt", "inverse_log"),
    "loss.smoothing": SHARE,
    "loss.own": _number(0, 100),
    "optim.name": _choice("adamw", "sgd"),
    "optim.learning_rate": _number(0, 1e3),
    "optim.min_learning_rate": _number(0, 1e3),
    "optim.base_learning_rate_factor": _number(0, 1e6),
    "optim.text_learning_rate_factor": _number(0, 1e6),
    "optim.frozen": PATTERN,
    "optim.warmup_epochs": _number(0, 1e4),
    "optim.weight_decay": _number(0, 1e3),
    "optim.beta1": _below_1(),
    "optim.beta2": _below_1(),
    "optim.epsilon": _above_0(1),
    "optim.clip": _above_0(1e9),
    "train.batch_size": BATCH,
    "train.views": _integer(0, 1000),
    "train.accumulate": _integer(1),
    "train.epochs": _number(0, 1e4),  # 0: no training
    "train.steps": _integer(0),
    "train.log_every": _integer(1),
    "train.then": TEXT,
    "train.calibrate_sets": SWITCH,
    "train.calibrate_new": SWITCH,
    "eval.batch_size": BATCH,
    "eval.split": NAME,
    "eval.views": Rule(lambda value: type(value) is int and value in (1, 5), "1 or 5"),
    "eval.every": _integer(0),
    "eval.moving_average": _integer(0),
    "eval.show": _integer(0, 1000),
    "checkpoint.every": _integer(1),
    "checkpoint.keep": _integer(1, 10**6),
    "mesh.data": _integer(-1),
    "mesh.fsdp": _integer(1),
}


def validate(config: ConfigDict, *, devices: int) -> None:
    """Raise ConfigError for the first value that cannot work on this many devices."""
    for name in names(config):
        rule = RULES[name]
        _require(rule.allows(field(config, name)), config, name, rule.words)
    for name, holds, words in _relations(config, devices):
        _require(holds, config, name, words)


def _relations(config: ConfigDict, devices: int) -> Iterator[tuple[str, bool, str]]:
    """Rules over several fields: the field to name, whether the rule holds, what the field must be."""
    mesh, train, memory = config.mesh, config.train, config.memory
    yield "mesh.fsdp", devices % mesh.fsdp == 0, f"a divisor of the {devices} devices"
    most = devices // mesh.fsdp
    yield "mesh.data", mesh.data != 0 and mesh.data <= most, f"-1 (all) or 1 to {most}: there are {devices} devices"
    used = mesh.data * mesh.fsdp if mesh.data > 0 else devices
    share, near = -(-train.batch_size // used), max(used, round(train.batch_size / used) * used)
    yield "train.accumulate", train.accumulate <= share, f"at most {share}, a device's share of the batch"
    update = config.model.base.batch_norm == "update"
    whole = "the statistics are those of a whole batch"
    yield "train.accumulate", not update or train.accumulate == 1, f"1 with batch_norm=update: {whole}"
    words = f"a multiple of the {used} devices, as {near} is, with batch_norm=update: {whole} without padding"
    yield "train.batch_size", not update or train.batch_size % used == 0, words
    speaking = voices(config)
    one_cosine = config.loss.name not in ("ldam", "ldam_paper") or len(set(speaking) - {"vote"}) == 1
    words = "lace, ce or balce with several voices beside vote: LDAM's margins are in cosines of one voice"
    yield "loss.name", one_cosine, words
    same = config.model.base.name == KEYS or config.model.base.weights == config.model.encoder.weights != ""
    trained_base = "base" in roles(config)
    yield "train.views", not train.views or memory.lookup == "cached", "0 unless memory.lookup is cached"
    words = "0 unless B starts as E (model.base and model.encoder have the same fields) and a voice uses the memory"
    shares = same and _blocks(config, "base") == _blocks(config, "encoder")
    yield "train.views", not train.views or not trained_base or ("encoder" in roles(config) and shares), words
    yield "train.views", not train.views or not update, "0 with batch_norm=update, which changes frozen blocks"
    tuned = not config.tune.share or (config.model.encoder.weights != "" and roles(config)[0] == "encoder")
    words = "0 unless E has weights, a voice uses the memory, and the voice base is absent or has B = E"
    yield "tune.share", tuned, words
    from_means = config.model.head_start != "means" or ("encoder" in roles(config) and same)
    yield "model.head_start", from_means, "random unless B starts from E's weights and a voice uses the memory"
    base, text = config.model.base, config.model.text
    towers = base.name.startswith("clip_image") and text.name == "clip_text" and base.weights == text.weights != ""
    words = "random or means unless B is CLIP's image tower and model.text its text tower, with the same weights"
    yield "model.head_start", config.model.head_start != "text" or (trained_base and towers), words
    summed = len(speaking) == 1 or config.model.fusion == "sum" or speaking == ("base", "text")
    yield "model.fusion", summed, "sum for other voices than base+text"
    linear = config.model.head == "linear" and not config.loss.name.startswith("ldam")  # whose heads are cosines
    read = config.model.text_start == "random" or ("text" in speaking and linear)
    yield "model.text_start", read, "random unless there is a voice text with a linear head (model.head, loss.name)"
    balanced = config.loss.name != "balce" or config.loss.reweight == "none"
    yield "loss.reweight", balanced, "none with loss.name=balce, which has weights of its own (1 / class count)"
    words = "the server's address for memory.index=milvus, as http://localhost:19530"
    yield "memory.milvus_uri", memory.index != "milvus" or bool(memory.milvus_uri), words
    words = "auto, callback or cached: with memory.index=device the host searches nothing"
    yield "memory.lookup", memory.lookup != "pipelined" or memory.index != "device", words
    held_out = config.data.val_share + config.data.test_share
    yield "data.test_share", held_out < 1, f"below 1 together with data.val_share ({config.data.val_share})"
    fits = config.optim.warmup_epochs <= train.epochs or train.epochs == 0
    yield "optim.warmup_epochs", fits, f"at most train.epochs ({train.epochs})"


def _blocks(config: ConfigDict, role: str) -> dict[str, Any]:
    """What decides the output of a model's blocks, as long as its adapters are zero."""
    return {name: value for name, value in config.model[role].items() if name not in ("adapter", "remat", "batch_norm")}


def _require(holds: bool, config: ConfigDict, name: str, wanted: str) -> None:
    if not holds:
        raise ConfigError(f"config.{name} is {field(config, name)!r}; it must be {wanted}")
