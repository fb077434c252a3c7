"""The command itself."""

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys

import pytest

import rac_jax
from rac_jax.bench.client import Server
from rac_jax.serve.guard import Rules
from tests.serve.conftest import Client, pixels


@pytest.mark.slow
def test_it_serves_until_it_is_told_to_stop(workdir, monkeypatch):
    monkeypatch.delenv("XLA_FLAGS")  # one device, as outside of tests
    server = Server(workdir, "--read_only", "--batch=2")
    try:
        server.wait()
        client = Client(server.port)
        assert client.predict(pixels(1, 1)[0])["label"] == "the 1"
        assert client.get("/api/run")["editable"] is False
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(b"no HTTP\r\n\r\n")
            assert connection.makefile("rb").read().endswith(b'{"error": "the request is not valid HTTP"}')
        command = [sys.executable, "-m", "rac_jax.serve", f"--workdir={workdir}", f"--port={server.port}"]
        second = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert second.returncode == 1
        assert second.stderr == (
            f"error: cannot listen at 127.0.0.1, port {server.port} (Address already in use); choose another --port\n"
        )
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=120) == 0
    finally:
        server.kill()


def test_a_memory_that_cannot_be_written_is_not_edited(workdir, monkeypatch):
    from rac_jax.serve import __main__ as command

    model = rac_jax.load(workdir, mesh__data=1)
    assert command._is_writable(model)
    folder = model.live.answering.run.retriever.memory.folder
    monkeypatch.setattr(os, "access", lambda path, mode: (path, mode) != (folder, os.W_OK))
    assert not command._is_writable(model)


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ({}, ["an edit from another machine or through a proxy needs the token: open http://127.0.0.1:80/#token=abc"]),
        ({"require_token": True}, ["every edit needs the token: open http://127.0.0.1:80/#token=abc"]),
        ({"read_only": True}, []),
    ],
)
def test_the_token_is_printed_wherever_edits_are_allowed(capsys, rules, said):
    from rac_jax.serve.__main__ import _say_where

    _say_where("127.0.0.1", 80, Rules(token="abc", **rules))
    assert capsys.readouterr().out.splitlines() == ["serving at http://127.0.0.1:80 (Ctrl-C ends it)", *said]


def test_a_token_is_printed_as_an_address_has_it(capsys):
    from rac_jax.serve.__main__ import _say_where

    _say_where("127.0.0.1", 80, Rules(token="50%/ü#"))
    assert "http://127.0.0.1:80/#token=50%25%2F%C3%BC%23\n" in capsys.readouterr().out


@pytest.mark.slow
def test_idle_connections_keep_nobody_out(workdir, monkeypatch):
    monkeypatch.delenv("XLA_FLAGS")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    server = Server(workdir, "--read_only", "--batch=1")
    try:
        server.wait()
        with contextlib.ExitStack() as stack:
            for _ in range(1100):
                stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            assert Client(server.port).get("/health")["status"] == "ok"
    finally:
        server.kill()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_port_that_is_taken_is_noticed_before_anything_slow():
    from rac_jax.serve.__main__ import _listen

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen at 127.0.0.1, port {port} .*; choose another --port"):
            _listen("127.0.0.1", port)


@pytest.mark.parametrize("host", ["no-such-host.invalid", "192.0.2.1"])
def test_a_host_that_is_not_of_this_machine_is_named(host):
    from rac_jax.serve.__main__ import _listen

    with pytest.raises(
        OSError, match=rf"^cannot listen at {host}, port 8000 \([\w ]+\); choose another --host$"
    ) as raised:
        _listen(host, 8000)
    assert "Unknown error" not in str(raised.value)


def test_a_token_is_printable_ascii_without_spaces_around_it(monkeypatch):
    from rac_jax.serve.__main__ import TOKEN, _token

    monkeypatch.setenv(TOKEN, " 50%/# \n")
    assert _token() == "50%/#"
    for empty in ("", " \n"):
        monkeypatch.setenv(TOKEN, empty)
        assert len(_token()) == 32
    for wrong in ("für", "a\tb", "a\x7f"):
        monkeypatch.setenv(TOKEN, wrong)
        with pytest.raises(ValueError, match="RAC_JAX_TOKEN has a character that is not printable ASCII; use letters"):
            _token()
