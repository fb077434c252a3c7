import math

import jax
import numpy as np
import pytest

from configs import demo, digits, inat, places
from rac_jax import config as configs
from rac_jax import optimizer, rules, train
from rac_jax.config import ConfigError, changed, difference, field, options
from rac_jax.rules import validate
from rac_jax.run import Run
from tests import tiny


def test_defaults_are_valid_and_locked():
    config = configs.default()
    validate(config, devices=8)
    with pytest.raises(AttributeError, match="batch_size"):
        config.train.batchsize = 3
    with pytest.raises(TypeError):
        config.train.batch_size = "many"


@pytest.mark.parametrize(
    "name, value, message",
    [
        ("loss.name", "ldam", r"config\.loss\.name is 'ldam'; it must be lace, ce or balce with several voices b"),
        ("loss.name", "focal", r"config\.loss\.name is 'focal'; it must be one of lace, ce, balce, ldam, ldam_paper"),
        ("memory.k", 0, r"config\.memory\.k is 0; it must be a whole number, between 1 and 16384"),
        (
            "train.accumulate",
            26,
            r"config\.train\.accumulate is 26; it must be at most 25, a device's share of the batch",
        ),
        ("data.flip", 1.5, r"config\.data\.flip is 1\.5; it must be between 0 and 1"),
        ("optim.clip", 0.0, r"config\.optim\.clip is 0\.0; it must be above 0 and at most 1e\+09"),
        ("optim.warmup_epochs", 31.0, r"config\.optim\.warmup_epochs is 31\.0; .*at most train\.epochs \(30\.0\)"),
        ("mesh.fsdp", 3, r"config\.mesh\.fsdp is 3; it must be a divisor of the 8 devices"),
        ("memory.index", "milvus", r"config\.memory\.milvus_uri is ''; .*as http://localhost:19530"),
        ("mesh.data", 0, r"config\.mesh\.data is 0; it must be -1 \(all\) or 1 to 8"),
        ("train.epochs", float("inf"), r"config\.train\.epochs is inf; it must be between 0 and 10000"),
        ("train.epochs", float("nan"), r"config\.train\.epochs is nan"),
        ("seed", 2**70, r"config\.seed is 1180591620717411303424; it must be a whole number, between 0 and 2147483647"),
        ("optim.frozen", "(", r"config\.optim\.frozen is '\('; it must be a regular expression"),
        ("memory.keep.share", 0.0, r"config\.memory\.keep\.share is 0\.0; it must be above 0 and at most 1"),
        ("memory.keep.classes", float("nan"), r"config\.memory\.keep\.classes is nan"),
        ("memory.keep.per_class", -1, r"config\.memory\.keep\.per_class is -1"),
        ("memory.hnsw_m", 1, r"config\.memory\.hnsw_m is 1; it must be a whole number, between 2 and 512"),
        ("memory.k", 2**31, r"config\.memory\.k is 2147483648"),
        ("data.crop_scale", (1.0, 0.5), r"config\.data\.crop_scale is \(1\.0, 0\.5\); .*0\.001 <= low <= high <= 1"),
        ("data.crop_scale", (2.0, 3.0), r"config\.data\.crop_scale is \(2\.0, 3\.0\)"),
        ("data.crop_scale", (0.5,), r"config\.data\.crop_scale is \(0\.5,\); it must be two numbers"),
        ("data.crop_ratio", (0, 0), r"config\.data\.crop_ratio is \(0, 0\)"),
        ("data.crop", 1.5, r"config\.data\.crop is 1\.5; it must be between 0\.1 and 1"),
        ("data.randaugment_layers", -1, r"config\.data\.randaugment_layers is -1"),
        ("data.randaugment_magnitude", 11.0, r"config\.data\.randaugment_magnitude is 11\.0; .*between 0 and 10"),
        ("data.randaugment_noise", -0.5, r"config\.data\.randaugment_noise is -0\.5"),
        (
            "data.test_share",
            0.95,
            r"config\.data\.test_share is 0\.95; .*below 1 together with data\.val_share \(0\.1\)",
        ),
        ("train.views", 4, r"config\.train\.views is 4; it must be 0 unless memory\.lookup is cached"),
        ("model.base.depth", -1, r"config\.model\.base\.depth is -1"),
        ("model.text.activation", "relu", r"config\.model\.text\.activation is 'relu'; .*gelu, gelu_tanh, quick_gelu"),
        ("model.drop_path", 1.0, r"config\.model\.drop_path is 1\.0; it must be 0 or more and below 1"),
        ("train.batch_size", 2**40, r"config\.train\.batch_size is 1099511627776"),
        ("data.root", "a\0b", r"config\.data\.root is 'a\\x00b'; it must be a text of one line"),
        ("eval.split", "", r"config\.eval\.split is ''; it must be a name"),
        ("mesh.data", 9, r"config\.mesh\.data is 9; it must be -1 \(all\) or 1 to 8"),
    ],
)
def test_impossible_values_name_the_field_and_what_would_work(name, value, message):
    config = configs.default()
    with pytest.raises(ConfigError, match=message):
        validate(changed_config(config, {name: value}), devices=8)


def test_no_training_needs_no_warm_up():
    config = configs.default()
    config.train.epochs = 0.0
    validate(config, devices=8)


def test_every_field_has_a_rule_and_no_rule_is_left_over():
    assert sorted(rules.RULES) == sorted(configs.names(configs.default()))


POOL = (
    None, True, -1, 0, 1, 2, 3, 7, 100, 2**31, 2**70, -0.5, 1e-300, 1e-3, 0.5, 1.0, 1.5, 10.0, 1e30, 1e300,
    math.nan, math.inf, -math.inf, "", " ", "x", "(", "a\0b", "a\nb", "gelu", "nan", (), (0.5,), (0.5, 1.0), (1.0, 0.5),
    (math.nan, 1.0), ("a", "b"), (0, 0), [1],
)  # fmt: skip


def changed_config(config, fields):
    for name, value in fields.items():
        room, _, last = name.rpartition(".")
        with config.ignore_type():
            (field(config, room) if room else config)[last] = value
    return config


def test_random_values_of_every_field_pass_or_are_refused_by_name():
    tried = refused = 0
    for name, rule in rules.RULES.items():
        for value in POOL:
            assert rule.allows(value) in (True, False), (name, value)
            tried += 1
    random = np.random.default_rng(0)
    for name in rules.RULES:
        for value in random.choice(np.array(POOL, object), 4):
            config = changed_config(configs.default(), {name: value})
            try:
                validate(config, devices=8)
            except ConfigError as error:
                refused += 1
                assert str(error).startswith("config.")
    assert tried > 3000 and 0.4 < refused / (4 * len(rules.RULES)) < 0.9  # neither all nor none of the values pass


CHEAP = {  # fields that a base-only model of digits reads, and values that do not take long
    name: [value for value in POOL if rules.RULES[name].allows(value) and value not in (100, 2**31, 1e30)]
    for name in rules.RULES
    if name.startswith(("data.", "optim.", "loss.", "train.", "model.base.", "mesh."))
    and name not in ("data.name", "data.root", "data.workers", "data.lists", "model.base.weights", "model.base.name")
    and not isinstance(field(configs.default(), name), str)
}


@pytest.mark.parametrize("seed", range(12))
def test_what_passes_starts_a_run(seed, tmp_path):
    """A run is assembled and its step traced with six random fields; models may still refuse sizes, by name."""
    random = np.random.default_rng(seed)
    names = random.choice(sorted(CHEAP), 6, replace=False)
    fields = {name: CHEAP[name][random.integers(len(CHEAP[name]))] for name in names}
    config = changed_config(tiny.config("base", devices=2), fields)
    try:
        validate(config, devices=8)
        run = Run.from_config(config, tmp_path)
    except ValueError as error:
        assert "config." in str(error), fields
        return
    tx = optimizer.from_config(config, len(run.dataset.split("train")))
    batch, found = run.put(next(train._batches(run, 0)), training=True)
    _, metrics = jax.eval_shape(train.compiled_step(run, tx), train.abstract_state(run, tx), batch, found, None)
    assert metrics["loss"].shape == (), fields


@pytest.mark.parametrize("field, value", [("loss.name", "ldam"), ("model.head", "cosine")])
def test_a_text_head_that_is_a_discriminant_is_linear(field, value):
    config = configs.default()
    config.model.voices, config.model.text_start = "text", "memory"
    validate(config, devices=1)
    config.update_from_flattened_dict({field: value})
    with pytest.raises(ConfigError, match=r"config\.model\.text_start is 'memory'; it must be random unless"):
        validate(config, devices=1)


def test_statistics_are_of_whole_batches_without_filling():
    config = configs.default()
    config.model.base.batch_norm, config.train.batch_size = "update", 100
    with pytest.raises(ConfigError, match=r"config\.train\.batch_size is 100; .* multiple of the 8 devices, as 96 is"):
        validate(config, devices=8)
    config.train.batch_size, config.train.accumulate = 96, 2
    with pytest.raises(ConfigError, match=r"config\.train\.accumulate is 2; it must be 1 with batch_norm=update"):
        validate(config, devices=8)


def test_no_pipeline_without_a_search_on_the_host():
    config = configs.default()
    config.memory.index, config.memory.lookup = "device", "pipelined"
    with pytest.raises(
        ConfigError, match=r"config\.memory\.lookup is 'pipelined'; it must be auto, callback or cached"
    ):
        validate(config, devices=1)
    config.memory.lookup = "cached"
    validate(config, devices=1)


def test_only_options_that_are_set_become_arguments():
    config = configs.default()
    config.model.base.update(depth=3, remat=True, batch_norm="update", epsilon=0.5)
    assert options(config.model.base) == {"depth": 3, "remat": True, "batch_norm": "update", "epsilon": 0.5}
    assert options(config.model.text) == {}


def test_difference_by_dotted_name():
    assert difference({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 1, "c": 5}, "e": 4}) == {
        "a.c": (2, 5), "d": (3, None), "e": (None, 4)
    }  # fmt: skip


def test_fields_that_change_no_number_may_change_between_starts():
    old, new = configs.default(), configs.default()
    new.train.steps, new.eval.every, new.checkpoint.keep, new.mesh.fsdp, new.name = 5, 10, 9, 2, "other"
    assert changed(old.to_dict(), new.to_dict()) == {}
    old.memory.lookup = "callback"  # auto and pipelined find the same neighbours, cached does not
    assert changed(old.to_dict(), new.to_dict()) == {}
    old.memory.lookup = "cached"
    assert changed(old.to_dict(), new.to_dict()) == {"memory.lookup": ("cached", "auto")}
    old.memory.lookup = "pipelined"
    new.train.batch_size, new.seed = 100, 7
    assert changed(old.to_dict(), new.to_dict()) == {"train.batch_size": (200, 100), "seed": (0, 7)}


@pytest.mark.parametrize("module", [demo, digits, places, inat])
def test_variants(module):
    for variant in module.VARIANTS:
        validate(module.get_config(variant), devices=1)
    names = [module.get_config(variant).name for variant in module.VARIANTS]
    assert len(set(names)) == len(names)  # each has a folder of its own
    with pytest.raises(ConfigError, match="nonsense is unknown; there are :"):
        module.get_config("nonsense")


def test_the_papers_recipe():
    c = places.get_config()
    assert (c.optim.learning_rate, c.train.batch_size, c.train.epochs, c.optim.warmup_epochs) == (5e-5, 200, 30, 5)
    assert (c.optim.weight_decay, c.optim.clip, c.loss.smoothing, c.model.drop_path) == (0.02, 1.0, 0.1, 0.1)
    assert (c.memory.k, c.memory.hnsw_m, c.memory.metric, c.loss.name) == (30, 32, "cosine", "lace")
    augment = c.data.randaugment_layers, c.data.randaugment_magnitude, c.data.randaugment_noise
    assert (*augment, c.data.flip, c.data.crop) == (3, 1, 0.5, 0.5, 0.95)
    c = inat.get_config()
    assert (c.optim.learning_rate, c.train.batch_size, c.train.epochs, c.data.image_size) == (1e-4, 50, 20, 224)
    assert inat.get_config("384").data.image_size == 384
    paper = places.get_config("paper")
    assert (paper.model.scale, paper.memory.exclude, paper.memory.ef_search) == ("paper", "first", 16)
