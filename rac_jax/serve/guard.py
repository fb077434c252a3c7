"""Who may ask what: an ASGI layer around the application.

- A request must name this server (Host): a page of another site whose name resolves to this machine is refused.
- A request that is not GET or HEAD must come from this server's own page or from a program, not from another site.
- Edits from another machine need the token. A request that a proxy forwarded, and says so, counts as from another
  machine. With `require_token` every edit needs it.
- A body is read up to a number of bytes and seconds, and all bodies together up to a number of bytes.
"""

import asyncio
import dataclasses
import hmac
import ipaddress
import json
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

SECONDS = 30.0  # between two parts of a body
DEADLINE = 300.0  # seconds for a whole body
TOGETHER = 400_000_000  # bytes of bodies that are held at a time
MOST_REQUESTS = 1000  # that have no answer yet; connections that ask nothing do not count
# Headers of proxies. One that sends none of them cannot be told from a program of this machine.
FORWARDED = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip")
READING = ("/api/predict", "/api/search")  # POST, because they have a body, but they change nothing
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


class Refused(Exception):
    """A request that is not served; `status` is HTTP's, the message one sentence."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


@dataclasses.dataclass(frozen=True)
class Rules:
    """What is allowed."""

    token: str
    names: tuple[str, ...] = ()  # of this server, beside localhost and addresses
    most_bytes: int = 20_000_000  # of a body
    read_only: bool = False
    require_token: bool = False  # for edits from this machine, too

    def check(self, method: str, path: str, headers: dict[str, str], client: str) -> None:
        """Raise Refused for a request that is not allowed."""
        host = headers.get("host", "")
        if not self._is_here(host):
            raise Refused(403, f"this server is not {host or 'named in the request'}; see --names")
        if method in ("GET", "HEAD"):
            return
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
        if (origin is not None and origin not in (f"http://{host}", f"https://{host}")) or site == "cross-site":
            raise Refused(403, "requests from pages of other sites are not served")
        if path in READING:
            return
        if self.read_only:
            raise Refused(403, "this server does not edit its memory")
        if not self._may_edit(headers, client):
            raise Refused(401, "this edit needs the token that the server printed")

    def editable(self, headers: dict[str, str], client: str) -> bool:
        """Whether edits of this client would be accepted."""
        return not self.read_only and self._may_edit(headers, client)

    def _may_edit(self, headers: dict[str, str], client: str) -> bool:
        return (not self.require_token and _is_local(client, headers)) or self._has_token(headers)

    def _has_token(self, headers: dict[str, str]) -> bool:
        given = headers.get("authorization", "")
        return hmac.compare_digest(given.encode(), f"Bearer {self.token}".encode())

    def _is_here(self, host: str) -> bool:
        """An address cannot be rebound to another machine; a name can, so names are listed."""
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        if name.lower() in ("localhost", *self.names):
            return True
        try:
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return False
        return True


def _is_local(client: str, headers: dict[str, str]) -> bool:
    try:
        return ipaddress.ip_address(client).is_loopback and not any(name in headers for name in FORWARDED)
    except ValueError:
        return False


def headers_of(scope: Scope) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}


def client_of(scope: Scope) -> str:
    return scope["client"][0] if scope.get("client") else ""


class Guard:
    """The application behind the rules."""

    def __init__(self, app: Any, rules: Rules, count: Callable[[Scope, int, float], None]):
        self._app, self._rules, self._count = app, rules, count
        self._held = 0  # bytes of the bodies of all requests that have no answer yet
        self._under_way = 0  # these requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}  # uvicorn leaves out the body of the answer
        started, status, held = time.perf_counter(), 0, 0
        self._under_way += 1

        def hold(more: int) -> int:
            nonlocal held
            if self._held + more > max(TOGETHER, self._rules.most_bytes):
                raise Refused(503, "too many bytes are waiting; try again in a moment")
            held, self._held = held + more, self._held + more
            return held

        async def answer(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                present = {name for name, _ in message["headers"]}
                more = [header for header in HEADERS if header[0] not in present]
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        try:
            if self._under_way > MOST_REQUESTS:
                raise Refused(503, "too many requests are waiting; try again in a moment")
            headers = headers_of(scope)
            self._rules.check(scope["method"], scope["path"], headers, client_of(scope))
            await self._app(scope, self._bounded(receive, headers, hold), answer)
        except Refused as error:
            if not status:
                await _say(error, answer)
        finally:
            self._held, self._under_way = self._held - held, self._under_way - 1
            self._count(scope, status, time.perf_counter() - started)

    def _bounded(self, receive: Receive, headers: dict[str, str], hold: Callable[[int], int]) -> Receive:
        """The body, refused as soon as it is too long or too slow. `hold` counts its bytes and returns their sum."""
        most, done, end = self._rules.most_bytes, False, time.monotonic() + DEADLINE
        too_long = Refused(413, f"a request may have {most:,} bytes, and this one has more")
        announced = headers.get("content-length", "0")
        if not announced.isdecimal() or int(announced) > most:
            raise too_long

        async def next_part() -> MutableMapping[str, Any]:
            nonlocal done
            if done:  # what is received now is the end of the connection, which may take its time
                return await receive()
            left = end - time.monotonic()
            try:
                async with asyncio.timeout(min(SECONDS, left)):
                    message = await receive()
            except TimeoutError:
                waited = f"nothing came for {SECONDS:.0f}", f"the body was not complete after {DEADLINE:.0f}"
                raise Refused(408, f"{waited[left < SECONDS]} seconds") from None
            if message["type"] == "http.request":
                if hold(len(message.get("body", b""))) > most:
                    raise too_long
                done = not message.get("more_body")
            return message

        return next_part


async def _say(error: Refused, send: Send) -> None:
    """One sentence; the connection is closed, since the rest of the body is not read."""
    body = json.dumps({"error": str(error)}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send(
        {"type": "http.response.start", "status": error.status, "headers": [*headers, (b"connection", b"close")]}
    )
    await send({"type": "http.response.body", "body": body})
