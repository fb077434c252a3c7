import pytest

from configs import demo, inat, places
from rac_jax import config as configs
from rac_jax.config import ConfigError, changed, difference, field, options, validate


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
        ("loss.name", "ldam", r"config\.loss\.name is 'ldam'; it must be lace, ce or balce with model\.branches=both"),
        ("loss.name", "focal", r"config\.loss\.name is 'focal'; it must be one of lace, ce, balce, ldam, ldam_paper"),
        ("memory.k", 0, r"config\.memory\.k is 0; it must be 1 or more"),
        (
            "train.accumulate",
            26,
            r"config\.train\.accumulate is 26; it must be at most 25, a device's share of the batch",
        ),
        ("data.crop", 1.2, r"config\.data\.crop is 1\.2; it must be between 0 and 1"),
        ("data.flip", 1.5, r"config\.data\.flip is 1\.5; it must be between 0 and 1"),
        ("optim.clip", 0.0, r"config\.optim\.clip is 0\.0; it must be above 0"),
        ("optim.frozen", "(", r"config\.optim\.frozen is '\('; it must be a regular expression"),
        ("optim.warmup_epochs", 31.0, r"config\.optim\.warmup_epochs is 31\.0; .*at most train\.epochs \(30\.0\)"),
        ("mesh.fsdp", 3, r"config\.mesh\.fsdp is 3; it must be a divisor of the 8 devices"),
        ("memory.index", "milvus", r"config\.memory\.milvus_uri is ''; .*as http://localhost:19530"),
        ("mesh.data", 9, r"config\.mesh\.data is 9; .*at most 8"),
    ],
)
def test_impossible_values_name_the_field_and_what_would_work(name, value, message):
    config = configs.default()
    *rooms, last = name.split(".")
    field(config, ".".join(rooms))[last] = value
    with pytest.raises(ConfigError, match=message):
        validate(config, devices=8)


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


@pytest.mark.parametrize("module", [demo, places, inat])
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
