import importlib.util

import jax
import pytest

from rac_jax import config as configs
from rac_jax import sharding
from rac_jax.compile import devices, targets
from rac_jax.config import ConfigError
from rac_jax.runtime import monitor


def test_several_targets():
    found = targets.parse("a100:8, v5e:16,l40s")
    assert [str(target) for target in found] == ["a100:8", "v5e:16", "l40s:1"]
    assert found[0].device.memory == 42_506_321_920


@pytest.mark.parametrize("text, message", [("k80:8", "a100, "), ("a100:x", "DEVICE:COUNT"), ("v5e:6", "power of two")])
def test_unknown_targets(text, message):
    with pytest.raises(ConfigError, match=message):
        targets.parse(text)


@pytest.mark.parametrize(
    "target, topology",
    [
        ("v5e:4", "v5e:2x2"),
        ("v5e:8", "v5e:2x4"),
        ("v6e:16", "v6e:4x4"),
        ("v5p:4", "v5p:2x2x1"),
        ("v5p:16", "v5p:2x2x4"),
    ],
)
def test_the_grid_of_a_tpu(target, topology):
    assert targets._topology(targets.parse(target)[0]) == topology


def test_every_device_has_a_peak():
    peaks = {name: device.peak for name, device in devices.DEVICES.items()}
    assert peaks["a100"] == monitor.PEAKS["A100"] and peaks["h100"] == monitor.PEAKS["H100"]
    assert peaks["v5e"] == 197e12 and peaks["v5p"] == 459e12


def test_a_missing_compiler_names_the_package(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(targets.MissingCompiler, match=rf'pip install "jax\[cuda12\]=={jax.__version__}"'):
        targets.devices(targets.parse("a100:8")[0])
    with pytest.raises(targets.MissingCompiler, match=r"jax\[tpu\]"):
        targets.devices(targets.parse("v5e:8")[0])


def test_the_description_of_a_gpu():
    text = targets.target_config(devices.DEVICES["a100"])
    for part in (
        "core_count: 108",
        "device_memory_size: 42506321920",
        "major: 8 minor: 0",
        "shared_memory_per_core: 167936",
    ):
        assert part in text


def test_on_a_tpu_pod_the_rows_of_a_process_are_contiguous(monkeypatch):
    target = targets.parse("v5e:16")[0]
    try:
        targets.require_compiler(target)
    except targets.MissingCompiler as missing:
        pytest.skip(str(missing))
    for name in ("TPU_SKIP_MDS_QUERY", "TPU_WORKER_HOSTNAMES", "TPU_ACCELERATOR_TYPE"):
        monkeypatch.delenv(name, raising=False)  # set below, and put back afterwards
    targets.prepare_environment([target])
    pod = targets.devices(target)
    own = [device.process_index for device in sharding.make_mesh(configs.default(), pod).devices.flat]
    assert own == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
    jaxs = [device.process_index for device in jax.make_mesh((16,), ("data",), devices=pod).devices.flat]
    assert jaxs != own  # the order that `sharding.make_mesh` must not use
