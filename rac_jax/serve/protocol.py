"""HTTP as uvicorn reads it, with limits on what comes before a body. uvicorn has none, and guard.py does not see it."""

import asyncio
import http
import json
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from rac_jax.serve.guard import Refused

MOST_BYTES = 65_536  # of a request's path and headers
SECONDS = 30.0  # from the first byte of a request to the end of its headers
TOO_LONG = f"the path and the headers of a request may have {MOST_BYTES:,} bytes, and these have more"
TOO_SLOW = f"the headers of the request were not complete after {SECONDS:.0f} seconds"


class Protocol(HttpToolsProtocol):
    """A connection. It ends with a request that is not HTTP, or whose headers are too long or too slow."""

    def __init__(self, *arguments: Any, **named: Any):
        super().__init__(*arguments, **named)
        self._unread = 0  # bytes since the last headers or part of a body that were complete
        self._deadline: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        """As in uvicorn, which logs each request that it cannot read, and each that asks for a websocket."""
        self._unset_keepalive_if_required()
        self._unread += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:  # answered as any other request
            pass
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, Refused):  # by on_headers_complete
                self._refuse(431, TOO_LONG)
            else:
                self._refuse(400, "the request is not valid HTTP")
        if self._unread > MOST_BYTES:  # a header, a path or a trailer that has not ended
            self._refuse(431, TOO_LONG)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._deadline = self.loop.call_later(SECONDS, self._refuse, 408, TOO_SLOW)

    def on_headers_complete(self) -> None:
        self._unread = 0
        self._end_deadline()
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > MOST_BYTES:
            raise Refused(431, TOO_LONG)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unread = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unread = 0
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_deadline()
        super().connection_lost(exc)

    def _end_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse(self, status: int, sentence: str) -> None:
        """One sentence, and the end of the connection."""
        if self.transport.is_closing():
            return
        body = json.dumps({"error": sentence}).encode()
        lines = (
            f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            "connection: close",
        )
        self.transport.write("\r\n".join((*lines, "", "")).encode() + body)
        self.transport.close()
