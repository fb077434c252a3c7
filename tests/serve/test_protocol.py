"""Requests as they go over the line: what comes before a body is limited in bytes and in seconds."""

import contextlib
import json
import logging
import socket
import threading
import time

import pytest
import uvicorn

from rac_jax.serve import protocol
from rac_jax.serve.protocol import Protocol

HEAD = b"POST / HTTP/1.1\r\nhost: x\r\n"


async def count(scope, receive, send):
    """Answers with the number of bytes of the body."""
    total, more = 0, True
    while more:
        message = await receive()
        total, more = total + len(message.get("body", b"")), message.get("more_body", False)
    body = b"%d" % total
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture(scope="module")
def port():
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(count, http=Protocol, ws="none", lifespan="off", log_config=None, access_log=False)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield listening.getsockname()[1]
    server.should_exit = True
    thread.join()


@pytest.fixture
def connection(port):
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        yield connection


def answer(connection):
    """Status and body of the next answer."""
    received = b""
    while b"\r\n\r\n" not in received:
        part = connection.recv(4096)
        assert part, received
        received += part
    head, _, body = received.partition(b"\r\n\r\n")
    (length,) = (int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
    while len(body) < length:
        body += connection.recv(4096)
    return int(head.split()[1]), body


def refused(connection):
    """Status and sentence of an answer after which the connection ends."""
    status, body = answer(connection)
    with contextlib.suppress(ConnectionResetError):  # what it had not read
        assert connection.recv(1) == b""
    return status, json.loads(body)["error"]


@pytest.mark.parametrize(
    ("start", "more"),
    [
        (HEAD, b"a: b\r\n"),
        (HEAD + b"a: ", b"b"),
        (HEAD, b"a"),
        (b"GET /", b"a"),
        (b"", b"\r\n"),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n0\r\n", b"a: b\r\n"),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n1;", b"a"),
    ],
    ids=["headers", "value", "name", "path", "empty lines", "trailers", "extension"],
)
def test_what_comes_before_a_body_is_limited(connection, start, more):
    with contextlib.suppress(ConnectionError):
        connection.sendall(start)
        for _ in range(1000):  # 10 MB
            connection.sendall(more * (10_000 // len(more)))
        pytest.fail("all of it was read")
    assert refused(connection) == (431, protocol.TOO_LONG)


def test_headers_that_come_at_once_are_limited_too(connection):
    connection.sendall(HEAD + b"a: " + 65_536 * b"b" + b"\r\n\r\n")
    assert refused(connection) == (431, protocol.TOO_LONG)


def test_a_connection_may_send_many_requests_with_long_headers_and_bodies(connection):
    long = HEAD + b"a: " + 60_000 * b"b" + b"\r\n"
    for _ in range(3):
        connection.sendall(long + b"content-length: 1000000\r\n\r\n" + bytes(1_000_000))
        assert answer(connection) == (200, b"1000000")
        connection.sendall(long + b"transfer-encoding: chunked\r\n\r\n" + 3 * (b"8000\r\n" + bytes(0x8000) + b"\r\n"))
        connection.sendall(b"0\r\n\r\n")
        assert answer(connection) == (200, b"98304")


def test_headers_that_come_in_drips_are_given_up(connection, monkeypatch):
    monkeypatch.setattr(protocol, "SECONDS", 0.2)
    connection.sendall(HEAD + b"content-length: 1\r\n\r\n")
    time.sleep(0.4)  # the limit for a body is that of guard.py
    connection.sendall(b"x")
    assert answer(connection) == (200, b"1")
    started = time.monotonic()
    with contextlib.suppress(ConnectionError):
        for byte in HEAD:
            connection.sendall(bytes([byte]))
            time.sleep(0.02)
    assert refused(connection) == (408, protocol.TOO_SLOW)
    assert time.monotonic() - started < 5


@pytest.mark.parametrize(
    "content", [b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/9\r\n\r\n", b"GET \xff HTTP/1.1\r\n\r\n"]
)
def test_what_is_not_http_gets_one_sentence_and_no_line_in_the_log(connection, caplog, content):
    caplog.set_level(logging.DEBUG)
    connection.sendall(content)
    assert refused(connection) == (400, "the request is not valid HTTP")
    assert not [record for record in caplog.records if record.name.startswith("uvicorn")]


def test_a_request_for_a_websocket_is_answered_as_any_other(connection, caplog):
    connection.sendall(HEAD + b"connection: upgrade\r\nupgrade: websocket\r\n\r\n")
    assert answer(connection) == (200, b"0")
    assert not caplog.records
