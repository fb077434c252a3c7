"""Who may ask what."""

import asyncio

import pytest

from rac_jax.serve import guard
from rac_jax.serve.guard import Guard, Refused, Rules

RULES = Rules(token="secret", names=("photos.example",), most_bytes=10)
LOCAL, ELSEWHERE = "127.0.0.1", "10.0.0.7"


def status(method="POST", path="/api/rows", client=LOCAL, rules=RULES, **headers):
    names = {"host": "localhost:8000"} | {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        rules.check(method, path, names, client)
    except Refused as error:
        return error.status
    return 200


@pytest.mark.parametrize("host", ["localhost", "localhost:8000", "127.0.0.1:8000", "[::1]:8000", "photos.example:443"])
def test_the_server_is_asked_by_its_own_names(host):
    assert status(host=host) == 200


@pytest.mark.parametrize(
    "host", ["", "evil.example", "evil.example:8000", "localhost.evil.example", "photos.example.x"]
)
def test_a_name_that_was_rebound_to_this_machine_is_refused(host):
    assert status(host=host) == 403 and status("GET", "/", host=host) == 403


def test_pages_of_other_sites_cannot_post():
    assert status(origin="http://localhost:8000") == 200
    assert status(origin="http://localhost:9000") == 403  # another server on this machine
    assert status(origin="null") == 403 and status(origin="http://evil.example") == 403
    assert status(path="/api/predict", origin="http://evil.example") == 403
    assert status(sec_fetch_site="cross-site") == 403 and status(sec_fetch_site="same-origin") == 200


def test_edits_from_elsewhere_need_the_token():
    assert status(client=ELSEWHERE) == 401 and status(client="") == 401
    assert status(client=ELSEWHERE, authorization="Bearer secret") == 200
    assert status(client=ELSEWHERE, authorization="Bearer secre") == 401
    assert status(client=ELSEWHERE, authorization="secret") == 401
    assert status(client=ELSEWHERE, path="/api/predict") == 200 and status("GET", "/", client=ELSEWHERE) == 200
    assert status(client=LOCAL, x_forwarded_for=ELSEWHERE) == 401  # a proxy on this machine
    assert status("DELETE", "/api/predict/", client=ELSEWHERE) == 401


@pytest.mark.parametrize(
    "name", ["forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip"]
)
def test_what_a_proxy_says_it_forwards_needs_the_token(name):
    assert status(client=LOCAL, **{name: "anything"}) == 401
    assert status(client=LOCAL, **{name: "anything"}, authorization="Bearer secret") == 200
    assert not RULES.editable({name: "anything"}, LOCAL)


def test_behind_a_silent_proxy_every_edit_needs_the_token():
    rules = Rules(token="secret", require_token=True)
    assert status(client=LOCAL, rules=rules) == 401 and not rules.editable({}, LOCAL)
    assert status(client=LOCAL, rules=rules, authorization="Bearer secret") == 200
    assert rules.editable({"authorization": "Bearer secret"}, LOCAL)
    assert status(client=LOCAL, rules=rules, path="/api/predict") == 200


def test_a_server_that_only_reads_refuses_every_edit():
    rules = Rules(token="secret", read_only=True)
    assert status(rules=rules) == 403 and status(path="/api/search", rules=rules) == 200
    assert status(client=ELSEWHERE, authorization="Bearer secret", rules=rules) == 403


async def asked(built, parts, headers=(), pause=0.0):
    """The messages that are sent in answer to a request with a body in parts, with pauses before them."""
    sent, remaining = [], [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    remaining = [*remaining[:-1], {**remaining[-1], "more_body": False}] if remaining else []

    async def receive():
        await asyncio.sleep(pause if remaining else 3600)
        return remaining.pop(0)

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/api/predict", "client": (LOCAL, 1)}
    await built({**scope, "headers": [(b"host", b"localhost"), *headers]}, receive, send)
    return sent


def ask(parts, app, headers=(), pause=0.0):
    """The same, of an application behind the rules, which count the request."""
    counted = []
    built = Guard(app, RULES, lambda scope, status, seconds: counted.append(status))
    sent = asyncio.run(asked(built, parts, headers, pause))
    assert counted == [sent[0]["status"]]
    return sent


async def echo(scope, receive, send):
    size, more = 0, True
    while more:
        message = await receive()
        size, more = size + len(message["body"]), message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(size).encode()})


def test_a_body_is_read_up_to_a_number_of_bytes():
    assert ask([b"12345", b"67890"], echo)[1]["body"] == b"10"
    start, body = ask([b"12345", b"67890", b"1"], echo)
    assert start["status"] == 413 and b"a request may have 10 bytes" in body["body"]
    assert ask([b""], echo, [(b"content-length", b"11")])[0]["status"] == 413
    assert ask([b""], echo, [(b"content-length", b"-1")])[0]["status"] == 413


def test_a_body_that_does_not_come_is_given_up(monkeypatch):
    monkeypatch.setattr(guard, "SECONDS", 0.01)
    start, body = ask([], echo)
    assert start["status"] == 408 and b"nothing came" in body["body"]


def test_a_body_that_comes_in_drips_is_given_up(monkeypatch):
    monkeypatch.setattr(guard, "DEADLINE", 0.05)
    start, body = ask([b""] * 30, echo, pause=0.01)
    assert start["status"] == 408 and b"the body was not complete after 0 seconds" in body["body"]


def test_bodies_together_are_read_up_to_a_number_of_bytes(monkeypatch):
    monkeypatch.setattr(guard, "TOGETHER", 15)

    async def meet():
        read, go_on = asyncio.Event(), asyncio.Event()

        async def slow(scope, receive, send):
            await receive()
            read.set()
            await go_on.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})

        built = Guard(lambda *request: (echo if read.is_set() else slow)(*request), RULES, lambda *_: None)
        first = asyncio.create_task(asked(built, [b"1234567890"]))
        await read.wait()
        during = [(await asked(built, [body]))[0]["status"] for body in (b"123456", b"12345", b"123456")]
        go_on.set()
        await first
        return during, (await asked(built, [b"123456"]))[0]["status"]

    assert asyncio.run(meet()) == ([503, 200, 503], 200)


def test_requests_under_way_are_limited(monkeypatch):
    monkeypatch.setattr(guard, "MOST_REQUESTS", 2)

    async def meet():
        go_on = asyncio.Event()

        async def slow(scope, receive, send):
            await go_on.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})

        built = Guard(slow, RULES, lambda *_: None)
        first = [asyncio.create_task(asked(built, [b""])) for _ in range(2)]
        await asyncio.sleep(0)
        start, body = await asked(built, [b""])
        go_on.set()
        statuses = [(await task)[0]["status"] for task in first]
        return start["status"], body["body"], statuses, (await asked(built, [b""]))[0]["status"]

    refused, said, answered, after = asyncio.run(meet())
    assert (refused, answered, after) == (503, [200, 200], 200) and b"too many requests are waiting" in said


def test_every_answer_has_the_policy():
    headers = dict(ask([b""], echo)[0]["headers"])
    assert headers[b"content-security-policy"] == guard.POLICY.encode() and b"unsafe" not in guard.POLICY.encode()
    assert headers[b"x-content-type-options"] == b"nosniff"
