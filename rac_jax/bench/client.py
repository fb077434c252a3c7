"""A server in a process of its own, and a client that costs little beside it."""

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

STARTING = 180.0  # seconds that a server may take to start


class Server:
    """`python -m rac_jax.serve` on a run's folder."""

    def __init__(self, workdir: Path, *arguments: str):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        command = [sys.executable, "-m", "rac_jax.serve", f"--workdir={workdir}", f"--port={self.port}", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def wait(self) -> float:
        """Until it answers. Returns the seconds."""
        started = time.perf_counter()
        while time.perf_counter() - started < STARTING:
            if self.process.poll() is not None:
                break
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=1).close()
                return time.perf_counter() - started
            time.sleep(0.05)
        raise RuntimeError("the server does not start; its own message says why")

    def megabytes(self) -> float:
        """The memory that the process occupies, without mapped files."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1e3

    def kill(self) -> None:
        """End it at once, in the middle of whatever it does."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()


@contextlib.contextmanager
def serving(workdir: Path, *arguments: str) -> Iterator[Server]:
    server = Server(workdir, *arguments)
    try:
        server.wait()
        yield server
    finally:
        server.stop()


class Client:
    """One connection, which is kept. Requests go one after another."""

    def __init__(self, port: int):
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
        """Status and body. A connection that the server closed is opened again."""
        lines = [f"{method} {path} HTTP/1.1", f"host: 127.0.0.1:{self._port}", f"content-length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        return await self.send("\r\n".join([*lines, "", ""]).encode("latin-1") + body)

    async def send(self, request: bytes) -> tuple[int, bytes]:
        """The answer to a request as it goes over the line."""
        for attempt in (1, 2):
            fresh = self._streams is None
            if self._streams is None:
                self._streams = await asyncio.open_connection("127.0.0.1", self._port)
            reader, writer = self._streams
            try:
                writer.write(request)
                return await self._answer(reader)
            except (asyncio.IncompleteReadError, ConnectionError):
                self.close()
                if fresh or attempt == 2:
                    raise
        raise AssertionError("not reached")

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[int, bytes]:
        head = await reader.readuntil(b"\r\n\r\n")
        status, *lines = head.decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines if line)
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        if headers.get("connection") == "close":
            self.close()
        return int(status.split()[1]), body

    async def json(self, method: str, path: str, body: bytes = b"") -> tuple[int, Any]:
        status, content = await self.ask(method, path, body)
        return status, json.loads(content)

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
        self._streams = None
