"""Keys and neighbours belong to the right images in whatever order JAX lists the devices."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

from rac_jax import sharding
from tests.runtime.device_order import keys_and_neighbours

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    found = keys_and_neighbours(tmp_path_factory.mktemp("expected") / "memory")
    assert found["memory"].shape == (466, 16) and found["rows"].shape == (250, 3)
    assert len(np.unique(found["rows"][:, 0])) > 50  # images have neighbours of their own
    for lookup in ("callback", "pipelined", "device"):
        np.testing.assert_array_equal(found[lookup], found["rows"])
    return found


def test_devices_are_sorted_by_process_and_id():
    listed = [SimpleNamespace(process_index=p, id=i) for p, i in ((1, 2), (0, 5), (1, 0), (0, 4))]
    ordered = [(device.process_index, device.id) for device in sharding.in_order(listed)]
    assert ordered == [(0, 4), (0, 5), (1, 0), (1, 2)]


def test_one_process_whose_mesh_has_another_order(expected, tmp_path):
    devices = np.array(jax.devices())[[3, 7, 0, 5, 1, 6, 2, 4]].reshape(4, 2)
    mesh = Mesh(devices, sharding.AXES, axis_types=(AxisType.Auto,) * 2)
    found = keys_and_neighbours(tmp_path / "memory", mesh)
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)


@pytest.mark.slow
def test_two_processes_whose_devices_are_listed_in_turn(expected, tmp_path):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4", "PYTHONPATH": str(ROOT)}
    script = Path(__file__).with_name("device_order.py")
    started = [
        subprocess.Popen([sys.executable, str(script), str(tmp_path), address, str(process)], env=environment)
        for process in (0, 1)
    ]
    try:
        assert [process.wait(timeout=300) for process in started] == [0, 0]
    finally:
        for process in started:
            process.kill()
    found = np.load(tmp_path / "found.npz")
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)
