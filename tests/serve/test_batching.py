"""What waits at the same time is answered together."""

import asyncio
import threading

import numpy as np
import pytest

from rac_jax.data.decode import BadImage
from rac_jax.serve.batching import Batcher, Busy, batch_size

SIZES = (1, 2, 4, 8)


@pytest.mark.parametrize(
    ("waiting", "taken"), [(1, 1), (2, 2), (3, 3), (4, 4), (5, 4), (6, 6), (7, 7), (8, 8), (9, 8), (30, 8)]
)
def test_a_batch_is_padded_if_it_is_nearly_full(waiting, taken):
    assert batch_size(waiting, SIZES) == taken


def test_a_size_below_the_smallest_is_padded():
    assert batch_size(1, (8, 16)) == 1 and batch_size(9, (8, 16)) == 8


def image(number):
    return np.full((1, 1, 3), number, np.uint8)


def test_requests_join_while_a_batch_is_answered():
    batches, go_on = [], threading.Event()

    def answers(pixels):
        batches.append(len(pixels))
        go_on.wait()
        return [int(one[0, 0, 0]) for one in pixels]

    async def ask():
        batcher = Batcher(image, answers, SIZES, most_waiting=20)
        asked = [asyncio.create_task(batcher.ask(number)) for number in range(14)]
        while not batches:
            await asyncio.sleep(0.001)
        while batches[0] + len(batcher._ready) < 14:  # each has been read
            await asyncio.sleep(0.001)
        asked[13].cancel()
        go_on.set()
        found = await asyncio.gather(*asked, return_exceptions=True)
        batcher.close()
        return found

    *found, cancelled = asyncio.run(ask())
    assert found == list(range(13)) and isinstance(cancelled, asyncio.CancelledError)
    assert sum(batches) == 13 and max(batches) <= 8 and len(batches) <= 4


def test_an_error_reaches_everybody_in_the_batch_and_the_next_batch_is_answered():
    def answers(pixels):
        if any(one[0, 0, 0] == 255 for one in pixels):
            raise ValueError("broken")
        return ["fine"] * len(pixels)

    async def ask():
        batcher = Batcher(image, answers, SIZES, most_waiting=20)
        with pytest.raises(ValueError, match="broken"):
            await batcher.ask(255)
        found = await batcher.ask(1)
        batcher.close()
        return found

    assert asyncio.run(ask()) == "fine"


def test_an_image_that_cannot_be_read_reaches_its_own_request_alone():
    def read(number):
        if number == 1:
            raise BadImage("not a usable image")
        return image(number)

    async def ask():
        batcher = Batcher(read, lambda pixels: [int(one[0, 0, 0]) for one in pixels], SIZES, most_waiting=20)
        found = await asyncio.gather(*(batcher.ask(number) for number in range(3)), return_exceptions=True)
        batcher.close()
        return found, batcher.waiting

    (first, error, last), waiting = asyncio.run(ask())
    assert (first, last, waiting) == (0, 2, 0) and isinstance(error, BadImage)


def test_one_image_alone_is_read_and_answered_by_one_thread():
    def read(number):
        return image(number), threading.get_ident()

    def answers(found):
        return [(int(one[0, 0, 0]), thread == threading.get_ident()) for one, thread in found]

    async def ask():
        batcher = Batcher(read, answers, SIZES, most_waiting=20)
        found = await batcher.ask(5)
        batcher.close()
        return found

    assert asyncio.run(ask()) == (5, True)


def test_too_many_waiting_requests_are_refused():
    begun, go_on = threading.Event(), threading.Event()

    def answers(pixels):
        begun.set()
        go_on.wait()
        return ["fine"] * len(pixels)

    async def ask():
        batcher = Batcher(image, answers, [1], most_waiting=2)
        asked = [asyncio.create_task(batcher.ask(0))]
        while not begun.is_set():
            await asyncio.sleep(0.001)
        asked += [asyncio.create_task(batcher.ask(0)) for _ in range(2)]
        while batcher.waiting < 2:
            await asyncio.sleep(0.001)
        with pytest.raises(Busy, match="2 images are waiting already"):
            await batcher.ask(0)
        go_on.set()
        found = await asyncio.gather(*asked)
        batcher.close()
        return found

    assert asyncio.run(ask()) == ["fine"] * 3
