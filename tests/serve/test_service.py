"""Batches are as large as pays, and pictures are named by the server that shows them."""

import asyncio
import contextlib
import threading

import pytest

from rac_jax.serve import service as services
from rac_jax.serve.batching import Busy
from rac_jax.serve.service import Service, worthwhile
from rac_jax.serve.uploads import Upload
from tests.serve.conftest import encoded, pixels


@pytest.mark.parametrize(
    ("seconds", "sizes"),
    [
        ({1: 8.0, 2: 14.0, 4: 42.0, 8: 119.0}, [1, 2]),  # a CPU
        ({1: 8.0, 2: 8.1, 4: 9.0, 8: 12.0}, [1, 2, 4, 8]),  # an accelerator
        ({8: 3.0}, [8]),
        ({1: 1.0, 2: 2.02, 4: 4.1}, [1, 2, 4]),  # all about the same
    ],
)
def test_sizes_end_where_images_a_second_are_most(seconds, sizes):
    assert worthwhile(seconds) == sizes


def test_pictures_of_two_servers_of_the_same_rows_have_different_addresses(model):
    with contextlib.ExitStack() as stack:
        keys = []
        for _ in range(2):
            service = Service(model, most_batch=1)
            stack.callback(service.close)
            keys.append(service.description()["keys"])
            assert service.description()["keys"] == keys[-1] and keys[-1].endswith(model.memory.numbering)
    assert keys[0] != keys[1]


def test_following_goes_on_after_any_failure_and_says_it_once(model, monkeypatch, caplog):
    looks = 0

    def refresh():
        nonlocal looks
        looks += 1
        raise IndexError("no rows")

    monkeypatch.setattr(services, "FOLLOWED", 0.01)
    monkeypatch.setattr(model.live, "refresh", refresh)
    with contextlib.closing(Service(model, most_batch=1)) as service, pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(service.follow(), 0.5))
    assert looks > 2
    assert [record.getMessage() for record in caplog.records if "cannot be read" in record.getMessage()] == [
        "the memory was changed and cannot be read (IndexError('no rows')); answers are from before"
    ]


def test_following_does_not_wait_until_free_memory_is_given_back(model, monkeypatch):
    go_on, looks = threading.Event(), []
    monkeypatch.setattr(services, "FOLLOWED", 0.01)
    monkeypatch.setattr(services, "TRIMMED", 1)
    monkeypatch.setattr(services.heap, "trim", go_on.wait)
    monkeypatch.setattr(model.live, "refresh", lambda: looks.append(1) is not None)
    with contextlib.closing(Service(model, most_batch=1)) as service:
        with pytest.raises(TimeoutError):
            asyncio.run(asyncio.wait_for(service.follow(), 0.5))
        go_on.set()
    assert len(looks) > 2


def test_too_many_searches_are_refused_and_do_not_keep_thumbnails_waiting(model, monkeypatch):
    go_on, upload = threading.Event(), Upload("", encoded(pixels(1, 1)[0]))
    monkeypatch.setattr(services, "MOST_WAITING", 20)
    monkeypatch.setattr(model, "search", lambda *_: go_on.wait() and ["found"])

    async def ask():
        searches = [asyncio.create_task(service.search(upload, 1)) for _ in range(20)]
        await asyncio.sleep(0)
        try:
            with pytest.raises(Busy, match="20 searches are waiting already; try again in a moment"):
                await asyncio.wait_for(service.search(upload, 1), 10)
            assert await asyncio.wait_for(service.in_thread(lambda: "a thumbnail"), 10) == "a thumbnail"
        finally:
            go_on.set()
        return [*await asyncio.gather(*searches), await service.search(upload, 1)]

    with contextlib.closing(Service(model, most_batch=1)) as service:
        assert asyncio.run(ask()) == [["found"]] * 21
