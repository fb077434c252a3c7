"""A server with a real run: four digits in its memory, on one device."""

import contextlib
import http.client
import io
import json
import shutil
import socket
import threading
import time

import numpy as np
import pytest
import uvicorn
from PIL import Image

import rac_jax
from rac_jax.data.sets import digits
from rac_jax.serve import app
from rac_jax.serve.guard import Rules
from rac_jax.serve.protocol import Protocol
from rac_jax.serve.service import Service

SETTINGS = {"data__image_size": 32, "model__encoder": {"depth": 5}, "mesh.data": 1, "eval.batch_size": 16}
TOKEN = "the token"


def pixels(label, number, split="train"):
    part = digits.load(0).split(split)
    return part.images.pixels[part.labels == label][:number]


def encoded(image, kind="PNG"):
    file = io.BytesIO()
    Image.fromarray(image).save(file, kind)
    return file.getvalue()


@pytest.fixture(scope="session")
def workdir(tmp_path_factory):
    """A run that several tests copy; its images are gone, and the memory has thumbnails."""
    images = np.concatenate([pixels(label, 12) for label in range(4)])
    names = [f"the {label}" for label in np.repeat(np.arange(4), 12)]
    model = rac_jax.fit(images, names, train__epochs=2.0, **SETTINGS)
    folder = tmp_path_factory.mktemp("served") / "run"
    model.save(folder)
    shutil.rmtree(folder / "images")
    return folder


class Client:
    """Requests to a server, each on a connection of its own."""

    def __init__(self, port):
        self.port = port

    def raw(self, method, path, body=None, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        with contextlib.closing(connection):
            names = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, names)
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()

    def __call__(self, method, path, body=None, **headers):
        status, _, content = self.raw(method, path, body, **headers)
        return status, json.loads(content)

    def get(self, path):
        status, found = self("GET", path)
        assert status == 200, found
        return found

    def predict(self, image):
        status, found = self("POST", "/api/predict", encoded(image), content_type="image/png")
        assert status == 200, found
        return found


@contextlib.contextmanager
def serving(model, *, sets=None, **rules):
    """A server in a thread; yields a client and the service."""
    service = Service(model, most_batch=8, most_pixels=1_000_000, sets=sets)
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    built = app.create(service, Rules(token=TOKEN, **{"most_bytes": 500_000, **rules}))
    logs = {"log_level": "error", "access_log": False}
    server = uvicorn.Server(uvicorn.Config(built, http=Protocol, ws="none", port=port, server_header=False, **logs))
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield Client(port), service
    finally:
        server.should_exit = True
        thread.join()
        listening.close()
        service.close()


@pytest.fixture
def model(workdir, tmp_path):
    rac_jax.load(workdir, mesh__data=1).save(tmp_path / "run")
    return rac_jax.load(tmp_path / "run", mesh__data=1)


@pytest.fixture
def served(model):
    with serving(model) as (client, service):
        yield client, service


@pytest.fixture(scope="session")
def standing(workdir):
    """A server for tests that do not edit."""
    model = rac_jax.load(workdir, mesh__data=1)
    with serving(model) as (client, _):
        yield client, model
