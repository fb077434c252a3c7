"""Many requests at the same time: questions, edits and broken ones, with the server killed in between.

After each kill and at the end, the memory on the disk must have every edit that was confirmed.
"""

import asyncio
import dataclasses
import io
import json
import random
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tqdm import tqdm

from rac_jax.bench.client import Client, Server
from rac_jax.memory import check, store

CLIENTS = 8
EDITS, BROKEN = 0.10, 0.05  # shares of the requests
MEASURED = (0.1, 0.2, 0.4, 0.6, 0.8, 1.0)  # shares of a server's requests: its memory is the median up to each
OFTEN = 0.1  # seconds between two measurements; a batch under way needs tens of MB
SOURCES = ("taught", "other")

TEXT = b"P2\n4 4\n255\n" + b"#\n" * 50_000  # a plain PGM, whose comments take Pillow seconds
# 5 megapixels in a kB, which Pillow fills byte by byte: a BMP with run-length encoding, where each line ends at once
LINES = struct.pack("<2sIIIIiiHHIIiiII", b"BM", 1058, 0, 58, 40, 10_000, 500, 1, 8, 1, 1000, 0, 0, 1, 0) + bytes(1004)

# Requests that must be refused: method, path, body, headers, status.
HOSTILE: tuple[tuple[str, str, bytes, dict[str, str], int], ...] = (
    ("POST", "/api/predict", b"", {}, 400),
    ("POST", "/api/predict", b"\xff\xd8\xff\xe0 no image", {}, 400),
    ("POST", "/api/predict", TEXT, {}, 400),
    ("POST", "/api/predict", LINES, {}, 400),
    ("POST", "/api/predict", b"--x--", {"content_type": "multipart/form-data; boundary=x; charset=punycode"}, 400),
    ("POST", "/api/predict", b"--x\r\n", {"content_type": "multipart/form-data; boundary=x"}, 400),
    ("POST", "/api/predict", b"no boundary", {"content_type": "multipart/form-data"}, 400),
    ("POST", "/api/rows", b"x", {}, 400),
    ("POST", "/api/rows?label=%0a", b"x", {}, 400),
    ("POST", "/api/rows?label=a&source=train", b"x", {}, 400),
    ("POST", "/api/search?k=-1", b"x", {}, 422),
    ("GET", "/api/rows/123456789", b"", {}, 404),
    ("DELETE", "/api/rows/123456789", b"", {}, 404),
    ("GET", "/api/rows/..%2f..%2fmanifest.json", b"", {}, 404),
    ("GET", "/static/..%2f..%2f__main__.py", b"", {}, 404),
    ("POST", "/api/sources/nothing/disable", b"", {}, 404),
    ("POST", "/api/sources/train/disable", b"", {"origin": "http://evil.example"}, 403),
    ("POST", "/api/predict", b"x", {"sec_fetch_site": "cross-site"}, 403),
    ("PATCH", "/api/sources", b"", {}, 405),
)


@dataclasses.dataclass
class Counts:
    """What happened."""

    asked: int = 0
    edits: int = 0
    broken: int = 0
    kills: int = 0
    lost: int = 0  # requests that a kill left without an answer
    unexpected: list[str] = dataclasses.field(default_factory=list)
    megabytes: list[list[float]] = dataclasses.field(default_factory=list)  # of each server, for parts of its requests

    def __str__(self) -> str:
        grown = "; ".join(", ".join(f"{value:.0f}" for value in one) for one in self.megabytes)
        shares = ", ".join(f"{share:.0%}" for share in MEASURED)
        lines = [
            f"{self.asked} requests, {self.edits} of them confirmed edits, {self.broken} broken; {self.kills} kills, "
            f"{self.lost} requests without an answer because of them",
            f"unexpected answers: {len(self.unexpected)}",
            *self.unexpected[:10],
            f"MB of each server, medians up to {shares} of its requests: {grown}",
        ]
        return "\n".join(lines)


@dataclasses.dataclass
class Expected:
    """Rows that were taught, by the reference of their pictures, and the states of sources that were switched."""

    present: dict[str, int] = dataclasses.field(default_factory=dict)  # confirmed: reference -> row
    uncertain: set[str] = dataclasses.field(default_factory=set)  # being removed when the server was killed
    gone: set[str] = dataclasses.field(default_factory=set)  # confirmed to be removed
    states: dict[str, str] = dataclasses.field(default_factory=dict)  # confirmed: source -> state
    switching: set[str] = dataclasses.field(default_factory=set)  # sources that are being switched
    under_way: int = 0  # edits that were sent and not answered


def soak(workdir: Path, images: Sequence[bytes], *, requests: int, kills: int, seed: int = 0) -> Counts:
    """Make the requests, in kills + 1 parts with a server for each. Raises if a confirmed edit is missing."""
    counts, expected, dice = Counts(), Expected(), random.Random(seed)
    with tqdm(total=requests, desc="soak", unit="request") as bar:
        for part in range(kills + 1):
            server = Server(workdir)
            try:
                server.wait()
                last = part == kills
                share = (requests - counts.asked) // (kills + 1 - part)
                asyncio.run(_part(server, images, share, counts, expected, dice, bar, last))
                if not last:
                    counts.kills += 1
            finally:
                server.kill()
            _verify(workdir / "memory", expected)
    return counts


def _verify(folder: Path, expected: Expected) -> None:
    """Compare the memory on the disk with what was confirmed."""
    wrong = check.problems(folder)
    if wrong:
        raise RuntimeError("the memory is damaged: " + "; ".join(wrong))
    memory = store.read(folder)
    there = {memory.images[row]: row for row in range(len(memory)) if memory.holds(row)}
    missing = [name for name in expected.present if name not in there] + sorted(expected.gone & set(there))
    if missing:
        raise RuntimeError(f"{len(missing)} confirmed edits are missing, as that of {missing[0]}")
    states = {source.name: source.state for source in memory.manifest.sources}
    for name, state in expected.states.items():
        if states.get(name) != state:
            raise RuntimeError(f"source {name} is {states.get(name, 'missing')}, and {state} was confirmed")
    taught = {name for name, row in there.items() if memory.source_of(row)[0].name in SOURCES}
    expected.present = {name: there[name] for name in taught}  # with those that were written and not yet confirmed
    expected.uncertain.clear()


async def _part(
    server: Server,
    images: Sequence[bytes],
    requests: int,
    counts: Counts,
    expected: Expected,
    dice: random.Random,
    bar: tqdm,
    last: bool,
) -> None:
    """A server's share of the requests. Unless it is the last, it is killed in the middle of an edit."""
    start, end, alive = counts.asked, counts.asked + requests - CLIENTS, True
    measured: list[tuple[float, float]] = []  # share of the requests, MB

    async def work() -> None:
        client = Client(server.port)
        while alive and (counts.asked < end or not last):
            counts.asked += 1
            bar.update()
            try:
                await _request(client, images, counts, expected, dice)
            except (ConnectionError, asyncio.IncompleteReadError, OSError) as error:
                if alive:
                    counts.unexpected.append(f"no answer: {error!r}")
                counts.lost += 1
        client.close()

    async def kill() -> None:
        nonlocal alive
        while counts.asked < end:
            measured.append(((counts.asked - start) / requests, server.megabytes()))
            await asyncio.sleep(OFTEN)
        while not last and not expected.under_way:
            await asyncio.sleep(0)
        if not last:
            alive = False
            server.kill()

    await asyncio.gather(kill(), *(work() for _ in range(CLIENTS)))
    counts.megabytes.append(_medians(measured))


def _medians(measured: Sequence[tuple[float, float]]) -> list[float]:
    """Medians of the values whose share is up to each of MEASURED; without those parts in which there are none."""
    parts = np.searchsorted(MEASURED, [share for share, _ in measured])
    values = np.array([value for _, value in measured])
    return [float(np.median(values[parts == part])) for part in range(len(MEASURED)) if (parts == part).any()]


async def _request(
    client: Client, images: Sequence[bytes], counts: Counts, expected: Expected, dice: random.Random
) -> None:
    """One request, drawn at random."""
    drawn, image = dice.random(), dice.choice(images)
    if drawn < BROKEN:
        method, path, body, headers, status = dice.choice(HOSTILE)
        counts.broken += 1
        _expect(counts, await client.ask(method, path, body, **headers), status, f"{method} {path}")
    elif drawn < BROKEN + EDITS:
        await _edit(client, image, counts, expected, dice)
    elif drawn < 0.9:
        _expect(counts, await client.ask("POST", "/api/predict", image), 200, "predict")
    elif drawn < 0.94:
        _expect(counts, await client.ask("POST", "/api/search?k=5", image), 200, "search")
    else:
        path = dice.choice(("/api/classes", "/api/sources", "/api/run", "/metrics", "/", "/api/rows/0/thumbnail"))
        _expect(counts, await client.ask("GET", path), 200, path)


async def _edit(client: Client, image: bytes, counts: Counts, expected: Expected, dice: random.Random) -> None:
    """Teach a picture, remove one, or switch a source."""
    expected.under_way += 1
    try:
        await _change(client, image, counts, expected, dice)
    finally:
        expected.under_way -= 1


async def _change(client: Client, image: bytes, counts: Counts, expected: Expected, dice: random.Random) -> None:
    choice = dice.random()
    free = [source for source in SOURCES if source not in expected.switching]
    if choice < 0.55 or not (expected.present and free):
        path = f"/api/rows?label=class{dice.randrange(12)}&source={dice.choice(SOURCES)}"
        status, body = await client.ask("POST", path, _another(image, dice))
        if _expect(counts, (status, body), (201, 409), path) and status == 201:
            row = json.loads(body)
            expected.present[row["image"]] = row["row"]
            counts.edits += 1
    elif choice < 0.9:
        name = dice.choice(list(expected.present))
        row = expected.present.pop(name)
        expected.uncertain.add(name)
        path = f"/api/rows/{row}?image={name}"
        status, body = await client.ask("DELETE", path)
        if _expect(counts, (status, body), 200, path):  # also if its row was copied to a new part meanwhile
            expected.uncertain.discard(name)
            expected.gone.add(name)
            counts.edits += 1
    else:
        source, change = dice.choice(free), dice.choice(("disable", "enable", "enable"))
        path = f"/api/sources/{source}/{change}"
        expected.states.pop(source, None)  # not known if the server is killed before it answers
        expected.switching.add(source)
        try:
            status, body = await client.ask("POST", path)
        finally:
            expected.switching.remove(source)
        if _expect(counts, (status, body), (200, 404), path) and status == 200:
            expected.states[source] = f"{change}d"
            counts.edits += 1


def _expect(counts: Counts, found: tuple[int, bytes], wanted: int | tuple[int, ...], what: str) -> bool:
    """Note an answer with another status than those that are intended."""
    fits = found[0] in (wanted if isinstance(wanted, tuple) else (wanted,))
    if not fits:
        counts.unexpected.append(f"{what}: {found[0]} {found[1][:200]!r}")
    return fits


def _another(image: bytes, dice: random.Random) -> bytes:
    """A picture like this one that nobody has sent before."""
    pixels: Any = np.asarray(Image.open(io.BytesIO(image)).convert("RGB")).copy()
    height, width, _ = pixels.shape
    y, x = dice.randrange(height // 2), dice.randrange(width // 2)
    pixels[y : y + height // 4, x : x + width // 4] = [dice.randrange(256) for _ in range(3)]
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=90)
    return file.getvalue()
