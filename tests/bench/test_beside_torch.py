"""The processes that take turns; PyTorch itself is no requirement of the tests."""

import pytest

from rac_jax.bench import beside_torch


def test_a_process_does_one_work_after_another_until_it_is_left(capfd):
    with beside_torch._process("ours", "efficientnet_lite0", {}) as once:
        for work in range(len(beside_torch.WORKS)):
            once(work)
    assert capfd.readouterr().err == ""


def test_a_process_that_ends_says_whose_it_was(capfd):
    ended = pytest.raises(RuntimeError, match=r"of no_such_model \(ours\) has ended")
    with ended, beside_torch._process("ours", "no_such_model", {}) as once:
        once(0)
    assert "no_such_model" in capfd.readouterr().err
