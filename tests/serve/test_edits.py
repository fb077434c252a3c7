"""Edits and requests that meet: rows that were copied, answers during an edit, uploads that are given up."""

import socket
import time
from urllib.parse import urlencode

from rac_jax.memory import edit
from tests.serve.conftest import encoded, pixels

NEW = 8


def teach(client, image, label, source):
    status, row = client("POST", f"/api/rows?label={label}&source={source}", encoded(image))
    assert status == 201, row
    return row


def test_a_row_that_was_copied_is_removed_by_its_image(served):
    client, _ = served
    a, b, c = pixels(NEW, 3, "test")
    before = client.predict(a)["label"]
    first = teach(client, a, "eight", "one")
    teach(client, b, "nine", "two")
    last = teach(client, c, "ten", "one")  # at the end of the memory, together with the first row of its source
    assert client("GET", f"/api/rows/{first['row']}")[0] == 404 and client.predict(a)["label"] == "eight"
    path = f"/api/rows/{first['row']}?image={first['image']}"
    status, found = client("DELETE", path)
    assert status == 200 and found == {**first, "row": last["row"] - 1}
    assert client.predict(a)["label"] != "eight" and before != "eight"
    assert [one["name"] for one in client.get("/api/classes")][4:] == ["nine", "ten"]
    assert client("DELETE", path)[0] == 404 and client.get("/health")["rows"] == 42


def test_no_other_row_of_an_image_is_removed(served):
    client, _ = served
    a, b, c = pixels(NEW, 3, "test")
    removed = teach(client, a, "eight", "one")
    path = f"/api/rows/{removed['row']}?image={removed['image']}"
    assert client("DELETE", path)[0] == 200
    other = teach(client, a, "nine", "two")
    assert client("DELETE", path)[0] == 404  # it was not copied: it is gone
    assert client.get(f"/api/rows/{other['row']}") == other
    same = teach(client, a, "ten", "two")
    teach(client, b, "nine", "one")
    moved = teach(client, c, "nine", "two")
    status, answer = client("DELETE", f"/api/rows/{same['row']}?image={same['image']}")
    assert status == 409 and f"of this image: {moved['row'] - 2}, {moved['row'] - 1}" in answer["error"]
    assert client.get("/health")["rows"] == 44


def test_after_a_compaction_no_other_row_of_the_image_is_removed(served, model):
    client, _ = served
    a, b, c = pixels(NEW, 3, "test")
    gone = teach(client, b, "nine", "one")
    first, second = teach(client, a, "eight", "one"), teach(client, a, "ten", "one")
    only = teach(client, c, "nine", "one")
    keys = {"keys": client.get("/api/run")["keys"]}
    assert client("DELETE", f"/api/rows/{gone['row']}?{urlencode(keys)}")[0] == 200
    with edit.editing(model.workdir / "memory") as editor:
        assert editor.compact() == 1
    for query in ({"image": first["image"]}, {}):  # its number is that of `second` now
        status, answer = client("DELETE", f"/api/rows/{first['row']}?{urlencode(query | keys)}")
        assert status == 409 and "another number by now" in answer["error"]
    status, found = client("DELETE", f"/api/rows/{only['row']}?{urlencode({'image': only['image']} | keys)}")
    assert status == 200 and found == {**only, "row": only["row"] - 1}
    now = {"image": second["image"], "keys": client.get("/api/run")["keys"]}
    status, found = client("DELETE", f"/api/rows/{first['row']}?{urlencode(now)}")
    assert status == 200 and found == {**second, "row": first["row"]}
    assert client.get("/health")["rows"] == 41


class Turning:
    """An edit that ends after so many looks at the state."""

    def __init__(self, before, after, looks):
        self.before, self.after, self.looks = before, after, looks

    @property
    def answering(self):
        self.looks -= 1
        return self.before if self.looks >= 0 else self.after

    def refresh(self):
        return False


def test_an_answer_is_of_the_state_before_or_after_an_edit(served, model):
    client, service = served
    live, before = model.live, model.live.answering
    version = client.get("/health")["version"]
    teach(client, pixels(NEW, 1, "test")[0], "eight", "one")
    after, seen = live.answering, {"health": set(), "run": set(), "classes": set()}
    try:
        for looks in range(14):
            model.live = Turning(before, after, looks)
            health = client.get("/health")
            seen["health"].add((health["rows"], health["version"] - version))
            model.live = Turning(before, after, looks)
            run = service.description()
            seen["run"].add((run["rows"], run["classes"]))
            model.live = Turning(before, after, looks)
            classes = client.get("/api/classes")
            seen["classes"].add((len(classes), sum(one["rows"] for one in classes)))
    finally:
        model.live = live
    assert seen == {"health": {(40, 0), (41, 1)}, "run": {(40, 4), (41, 5)}, "classes": {(4, 40), (5, 41)}}


def test_an_upload_that_is_given_up_is_no_failure_of_the_server(served):
    client, _ = served
    for head in (b"", b"Content-Type: multipart/form-data; boundary=x\r\n"):
        with socket.create_connection(("127.0.0.1", client.port)) as line:
            line.sendall(b"POST /api/predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n" + head + b"\r\n")
            line.sendall(b"--x\r\n")
            time.sleep(0.1)
    counted = 'rac_jax_requests_total{route="/api/predict",status="%d"}'
    end, text = time.monotonic() + 60, ""
    while f"{counted % 499} 2.0" not in text and time.monotonic() < end:
        time.sleep(0.05)
        text = client.raw("GET", "/metrics")[2].decode()
    assert f"{counted % 499} 2.0" in text and counted % 500 not in text and counted % 0 not in text
