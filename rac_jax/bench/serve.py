"""A server beside plain `predict` on the same images: latency and images a second; and a soak with edits and kills.

The server is a process of its own, on a copy of the run. Contenders take turns. The client shares the cores with it.
"""

import argparse
import asyncio
import functools
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

import rac_jax
from rac_jax import data, predict
from rac_jax.api import Model
from rac_jax.bench import soak
from rac_jax.bench.client import Client, Server, serving
from rac_jax.bench.race import median, race, ratio
from rac_jax.data import evaluation, record
from rac_jax.serve.pictures import encoded

CLIENTS = (1, 8, 32)


def main(arguments: Sequence[str] = ()) -> None:
    """Print a table, or the result of a soak."""
    parser = argparse.ArgumentParser("rac_jax.bench serve", description=__doc__)
    parser.add_argument("--workdir", required=True, help="a trained run with a memory, as runs/demo")
    parser.add_argument("--images", type=int, default=256, help="of the run's evaluation split, asked in each turn")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each contender")
    parser.add_argument("--soak", type=int, default=0, help="instead: so many requests, of which a tenth are edits")
    parser.add_argument("--kills", type=int, default=3, help="with --soak: kill the server so many times")
    options = parser.parse_args(arguments)
    print(f"{os.cpu_count()} cores, {jax.device_count()} × {jax.default_backend()}")
    with tempfile.TemporaryDirectory() as folder:
        workdir = Path(
            shutil.copytree(options.workdir, Path(folder) / "run", ignore=shutil.ignore_patterns("neighbours"))
        )
        model = rac_jax.load(workdir)
        images = images_of(model, options.images)
        if options.soak:
            print(soak.soak(workdir, images, requests=options.soak, kills=options.kills))
        else:
            with serving(workdir) as server:
                print_speed(model, server, images, options.rounds)


def images_of(model: Model, number: int) -> list[bytes]:
    """Encoded images of the split that the run is evaluated on, evenly spaced."""
    trained_on = record.read(model.workdir)
    assert trained_on is not None
    split = evaluation.load(model.config, model.config.eval.split, trained_on).split(model.config.eval.split)
    places = np.linspace(0, len(split) - 1, min(number, len(split))).astype(int)
    return [encoded(split.images, int(place)) for place in places]


def print_speed(model: Model, server: Server, images: list[bytes], rounds: int) -> None:
    """Latency and throughput with some clients, beside plain batches and the bare forward pass and lookup."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, f"{number}.jpg") for number in range(len(images))]
        for file, content in zip(files, images, strict=True):
            file.write_bytes(content)
        latencies: dict[int, list[float]] = {number: [] for number in CLIENTS}
        transform, answering = data.eval_transform(model.config), model.live.answering
        size = model.config.data.image_size
        pixels = [transform(predict.read(file, size), np.random.default_rng(0)) for file in files]
        bare: list[float] = []

        def alone() -> None:
            for one in pixels:
                started = time.perf_counter()
                answering.said([one])
                bare.append(time.perf_counter() - started)

        def clients(number: int) -> None:
            latencies[number] += asyncio.run(ask_all(server.port, images, number))

        contenders: dict[str, Callable[[], Any]] = {
            "predict": lambda: list(predict.answers(answering, files)),
            "bare": alone,
        }
        for number in CLIENTS:
            contenders[f"{number} clients"] = functools.partial(clients, number)
        times = race(contenders, rounds, "serve")
    plain = len(images) / median(times["predict"])
    batch = model.config.eval.batch_size
    print(f"{len(images)} images, {rounds} turns; plain predict, batches of {batch}: {plain:.1f} images/s")
    print(f"forward pass and lookup of one image: p50 {_ms(bare, 50)}, p95 {_ms(bare, 95)} ms")
    print(f"{'clients':>8} {'p50 ms':>8} {'p95 ms':>8} {'images/s':>9} {'× predict':>10}")
    for number in CLIENTS:
        name, late = f"{number} clients", latencies[number]
        speed = len(images) / median(times[name])
        print(f"{number:8d} {_ms(late, 50)} {_ms(late, 95)} {speed:9.1f} {1 / ratio(times, name, 'predict'):10.2f}")
    print(f"p50 of one client / of the bare pass: {np.median(latencies[1]) / np.median(bare):.2f}")


def _ms(seconds: Sequence[float], percent: float) -> str:
    return f"{1e3 * np.percentile(seconds, percent):8.1f}"


async def ask_all(port: int, images: Sequence[bytes], clients: int) -> list[float]:
    """Ask for every image once, with so many clients at the same time. Returns the seconds of each request."""
    remaining, seconds = list(images), []

    async def work() -> None:
        client = Client(port)
        while remaining:
            image = remaining.pop()
            started = time.perf_counter()
            status, body = await client.ask("POST", "/api/predict", image, content_type="image/jpeg")
            seconds.append(time.perf_counter() - started)
            if status != 200:
                raise RuntimeError(f"the server said {status}: {body[:200]!r}")
        client.close()

    await asyncio.gather(*(work() for _ in range(clients)))
    return seconds
