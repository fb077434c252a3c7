"""The benchmark of the server runs, and a short soak with kills finds every confirmed edit."""

import pytest

import rac_jax
from rac_jax.bench import serve, soak
from rac_jax.memory import edit
from tests.memory.conftest import add, keys, make

__all__ = ["keys"]

SETTINGS = {"data__image_size": 32, "model__encoder": {"depth": 5}, "eval.batch_size": 16}


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench") / "run"
    rac_jax.fit("digits", workdir=folder, train__epochs=1.0, **SETTINGS)
    return folder


@pytest.fixture
def alone(monkeypatch):
    """The server has one device, as outside of tests."""
    monkeypatch.delenv("XLA_FLAGS")


@pytest.mark.slow
def test_a_server_is_compared_with_predict(workdir, alone, capsys):
    serve.main(["--workdir", str(workdir), "--images=12", "--rounds=1"])
    printed = capsys.readouterr().out
    assert "12 images, 1 turns; plain predict" in printed and "p50 of one client / of the bare pass:" in printed
    assert [line.split()[0] for line in printed.splitlines()[4:7]] == ["1", "8", "32"]


@pytest.mark.slow
def test_confirmed_edits_survive_kills(workdir, alone):
    images = serve.images_of(rac_jax.load(workdir), 8)
    counts = soak.soak(workdir, images, requests=400, kills=2)
    assert not counts.unexpected and counts.kills == 2 and counts.edits > 5 and counts.broken > 5
    assert len(counts.megabytes) == 3 and str(counts).startswith(f"{counts.asked} requests")


def test_a_switch_of_a_source_that_was_lost_is_found(tmp_path, keys):
    folder = make(tmp_path / "m", keys[:20]).folder
    add(folder, "taught", keys[20:], fingerprint="g")
    soak._verify(folder, soak.Expected(states={"taught": "enabled"}))
    with edit.editing(folder) as editor:
        editor.set_state("taught", "disabled")
    soak._verify(folder, soak.Expected(states={"taught": "disabled"}))
    for states, said in (({"taught": "enabled"}, "taught is disabled"), ({"other": "enabled"}, "other is missing")):
        with pytest.raises(RuntimeError, match=f"source {said}, and enabled was confirmed"):
            soak._verify(folder, soak.Expected(states=states))
