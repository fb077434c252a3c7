"""The API of a real run: answers as `predict` gives them, edits that hold, and requests that are refused."""

import concurrent.futures
import json

import numpy as np
import pytest

import rac_jax
from rac_jax import data, predict, train
from rac_jax.bench import soak
from rac_jax.calibration.coverage import LabelSets
from rac_jax.memory import edit, manifest
from rac_jax.serve.metrics import compilations
from tests.retrieval.test_views import config as with_views
from tests.serve.conftest import encoded, pixels, serving

NEW = 8


STATE = {"keys", "version"}  # of the memory: what the server adds to an answer


def same(answer, expected):
    exempt = dict.fromkeys(("probability", "voices", *STATE), 0)
    assert {**answer, **exempt} == {**expected, **exempt}
    for voice, vote in expected["voices"].items():
        assert answer["voices"][voice]["label"] == vote["label"]
        assert answer["voices"][voice]["probability"] == pytest.approx(vote["probability"], rel=1e-4)


def form(*files):
    parts = [
        f'--x\r\nContent-Disposition: form-data; name="files"; filename="{name}"\r\n\r\n'.encode() + content + b"\r\n"
        for name, content in files
    ]
    return b"".join(parts) + b"--x--\r\n"


def test_answers_are_those_of_predict(standing, tmp_path):
    client, model = standing
    images = pixels(2, 3, "test")
    expected = model.predict(images)
    for image, answer in zip(images, expected, strict=True):
        same(client.predict(image), answer)
    body = form(("a.png", encoded(images[0])), ("b.png", b"nothing"), ("c.png", encoded(images[1])))
    status, found = client("POST", "/api/predict", body, content_type="multipart/form-data; boundary=x")
    assert status == 200 and [one["image"] for one in found] == ["a.png", "b.png", "c.png"]
    same({**found[2], "image": 0}, {**expected[1], "image": 0})
    assert found[1] == {"image": "b.png", "error": "b.png: not a usable image (of no known format)"}
    (tmp_path / "a.png").write_bytes(encoded(images[0]))
    (printed,) = predict.answers(model.live.answering, [tmp_path / "a.png"])
    assert json.loads(json.dumps(printed)).keys() == found[0].keys() - STATE
    status, near = client("POST", "/api/search?k=4", encoded(images[0]))
    assert status == 200 and near == model.search(images[0], 4)


def test_a_new_class_is_taught_and_undone(served, model):
    client, _ = served
    image = pixels(NEW, 1, "test")[0]
    before, version = client.predict(image), client.get("/health")["version"]
    status, row = client("POST", "/api/rows?label=eight", encoded(image))
    assert status == 201 and (row["label"], row["text"], row["source"]) == ("eight", "eight", "taught")
    after = client.predict(image)
    assert after["label"] == "eight" and after["neighbours"][0]["row"] == row["row"]
    assert after["neighbours"][0]["similarity"] == pytest.approx(1, abs=1e-3)
    assert client.get("/api/classes")[-1] == {"name": "eight", "rows": 1, "trained": False, "examples": [row["row"]]}
    assert client.get("/health") == {"status": "ok", "rows": 41, "version": version + 1, "waiting": 0}
    status, headers, picture = client.raw("GET", f"/api/rows/{row['row']}/thumbnail")
    assert status == 200 and headers["content-type"] == "image/jpeg" and picture.startswith(b"\xff\xd8")
    other = rac_jax.load(model.workdir, mesh__data=1)  # it is on the disk
    same(other.predict(image), after)
    status, _ = client("DELETE", f"/api/rows/{row['row']}?image=another")
    assert status == 409
    status, found = client("DELETE", f"/api/rows/{row['row']}?image={row['image']}")
    assert status == 200 and found == row
    same(client.predict(image), before)
    assert client("DELETE", f"/api/rows/{row['row']}")[0] == 404
    assert client.raw("GET", f"/api/rows/{row['row']}/thumbnail")[0] == 404
    status, row = client("POST", "/api/rows?text=a%20round%20thing&source=captions", encoded(image))
    assert status == 201 and row["label"] is None and row["text"] == "a round thing"
    more = pixels(NEW, 3, "test")[1:]
    for image, written in zip(more, ("Cafe%CC%81", "Caf%C3%A9"), strict=True):  # the accent as a letter, and not
        status, row = client("POST", f"/api/rows?label={written}", encoded(image))
        assert status == 201 and row["label"] == "Caf\xe9"


def test_an_answer_says_which_state_of_the_memory_it_is_of(served, model):
    client, _ = served
    image = pixels(NEW, 1, "test")[0]
    states = []
    for number in range(3):
        run, answer = client.get("/api/run"), client.predict(image)
        states.append((answer["keys"], answer["version"]))
        assert states[-1] == (run["keys"], run["version"]) and run["version"] == client.get("/health")["version"]
        if number == 0:
            assert client("POST", "/api/rows?label=eight", encoded(image))[0] == 201
        elif number == 1:
            model.forget(answer["neighbours"][0]["row"])
            with edit.editing(model.workdir / "memory") as editor:
                assert editor.compact() == 1
            model.live.refresh()
    (first, before), (same_keys, after), (other_keys, last) = states
    assert first == same_keys != other_keys and before < after < last


def test_a_picture_is_taught_where_a_source_of_that_name_was_added_as_a_whole(served, model):
    client, _ = served
    image = pixels(NEW, 1, "test")[0]
    model.add(pixels(1, 1, "test"), ["the 1"], source="taught")
    assert client("POST", "/api/rows?label=eight&source=taught", encoded(image))[0] == 409  # as it was asked for
    for source in ("", "&source=%20"):
        status, row = client("POST", f"/api/rows?label=eight{source}", encoded(image))
        assert status == 201 and row["source"] == "taught 2"
        assert client("DELETE", f"/api/rows/{row['row']}?image={row['image']}")[0] == 200
    row = model.teach(image, "eight")
    assert model.memory.row(row)["source"] == "taught 2"
    model.remove("taught")
    row = model.teach(image, "eight")
    assert model.memory.row(row)["source"] == "taught"


def test_sources_are_switched_and_removed(served):
    client, _ = served
    image = pixels(NEW, 1, "test")[0]
    before = client.predict(image)
    assert client("POST", "/api/rows?label=eight&source=a%2Fb", encoded(image))[0] == 201
    taught = client.predict(image)
    status, sources = client("POST", "/api/sources/a%2Fb/disable")
    assert status == 200 and [(s["name"], s["state"], s["rows"]) for s in sources] == [
        ("train", "enabled", 40),
        ("a/b", "disabled", 1),
    ]
    same(client.predict(image), before)
    assert client("POST", "/api/rows?label=eight&source=a%2Fb", encoded(image))[0] == 409
    client("POST", "/api/sources/a%2Fb/enable")
    same(client.predict(image), taught)
    assert client("DELETE", "/api/sources/a%2Fb")[0] == 200
    same(client.predict(image), before)
    assert client("POST", "/api/sources/a%2Fb/enable")[0] == 404
    status, refused = client("POST", "/api/sources/train/disable")
    assert status == 409 and refused["error"].startswith("'train' is the only source that is enabled")
    assert client("POST", "/api/rows?label=x&source=train", encoded(image))[0] == 409


def test_nothing_is_compiled_after_the_start_even_when_the_room_is_used_up(served, model):
    client, _ = served
    images = pixels(NEW, 20, "test")
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        list(threads.map(client.predict, images))
        before = compilations()
        for number, image in enumerate(images[:3]):
            assert client("POST", f"/api/rows?label=new{number}", encoded(image))[0] == 201
            list(threads.map(client.predict, images))
            assert client("POST", "/api/search?k=7", encoded(image))[0] == 200
        assert compilations() == before
        room = model.live.answering.room
        for number in range(room.classes):  # more classes than there is room for: compiled before the edit is confirmed
            client("POST", f"/api/rows?label=class{number}", encoded(images[3]))
        assert model.live.answering.room.classes > room.classes
        grown = compilations()
        assert grown > before
        list(threads.map(client.predict, images))
        assert compilations() == grown
    text = client.raw("GET", "/metrics")[2].decode()
    assert f"rac_jax_compiled_programs {float(grown)}" in text
    assert 'rac_jax_requests_total{route="/api/predict",status="200"} 100.0' in text
    assert f"rac_jax_memory_rows {40.0 + 3 + room.classes}" in text


def test_nothing_is_compiled_after_the_start_where_b_starts_from_e_and_answers_are_of_crops(tmp_path):
    config = with_views(devices=1, count=1)
    config.train.steps = 1
    train.train(config, tmp_path / "run", evaluated=False)
    model = rac_jax.load(tmp_path / "run", eval__views=5, mesh__data=1)
    image = pixels(NEW, 1, "test")[0]
    with serving(model) as (client, _):
        before = compilations()
        status, found = client("POST", "/api/search?k=3", encoded(image))
        assert status == 200 and len(found) == 3
        assert client("POST", "/api/rows?label=new", encoded(image))[0] == 201 and client.predict(image)["label"]
        assert compilations() == before


def test_requests_at_the_same_time_share_batches(standing):
    client, _ = standing
    images = list(pixels(1, 24, "test"))
    expected = [client.predict(image) for image in images]
    with concurrent.futures.ThreadPoolExecutor(24) as threads:
        for answer, other in zip(threads.map(client.predict, images), expected, strict=True):
            same(answer, other)
    metrics = client.raw("GET", "/metrics")[2].decode()
    lines = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if not line.startswith("#"))
    assert float(lines["rac_jax_batch_images_count"]) < 0.9 * float(lines["rac_jax_images_total"])


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "sentence"),
    [
        ("POST", "/api/predict", b"", 400, "the request has no image"),
        ("POST", "/api/predict", b"GIF89a", 400, "the image: not a usable image"),
        ("POST", "/api/predict", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9", 400, "of no known format"),
        ("POST", "/api/predict", bytes(500_001), 413, "a request may have 500,000 bytes"),
        ("POST", "/api/search?k=0", b"x", 422, "k: input should be greater than or equal to 1"),
        ("POST", "/api/rows", b"x", 400, "a row needs a label or a text"),
        ("POST", "/api/rows?label=%00", b"x", 400, "a label is 1 to 200 printable characters"),
        ("POST", "/api/rows?label=" + 201 * "a", b"x", 400, "a label is 1 to 200 printable characters"),
        (
            "POST",
            "/api/rows?label=a&source=b%E2%80%AEc",
            b"x",
            400,
            "a source is 1 to 100 printable characters, and this",
        ),
        ("POST", "/api/rows?label=%20&source=a", b"x", 400, "a row needs a label or a text"),
        ("GET", "/api/rows/99999", None, 404, "there is no row 99999"),
        ("GET", "/api/rows/-1", None, 404, "there is no row -1"),
        ("GET", "/api/rows/../../etc/passwd", None, 404, "not found"),
        ("GET", "/static/..%2f..%2fapp.py", None, 404, "not found"),
        ("GET", "/api/examples/999999", None, 404, "there is no picture of example 999999"),
        ("DELETE", "/api/sources/nothing", None, 404, "there is no source 'nothing'"),
        ("PUT", "/api/sources", None, 405, "method not allowed"),
    ],
)
def test_broken_requests_get_one_sentence_and_leave_no_trace(standing, method, path, body, status, sentence):
    client, model = standing
    before = {path: path.stat().st_mtime_ns for path in model.workdir.rglob("*")}
    found, answer = client(method, path, body)
    assert found == status and list(answer) == ["error"] and sentence in answer["error"], answer
    assert {path: path.stat().st_mtime_ns for path in model.workdir.rglob("*")} == before


def test_the_broken_requests_of_the_soak_are_refused(standing):
    client, _ = standing
    for method, path, body, headers, status in soak.HOSTILE:
        assert client.raw(method, path, body, **headers)[0] == status, (method, path, body[:20])


@pytest.mark.parametrize("charset", ["undefined", "punycode"])
def test_a_form_in_a_charset_that_cannot_be_used_is_refused(standing, charset):
    client, _ = standing
    body = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a-!.png"\r\n\r\nx\r\n--x--\r\n'
    kind = f"multipart/form-data; boundary=x; charset={charset}"
    status, answer = client("POST", "/api/predict", body, content_type=kind)
    assert status == 400 and answer["error"].startswith("the form cannot be read: "), answer


def test_too_many_pixels_are_refused_before_they_are_decoded(standing):
    client, _ = standing
    status, answer = client("POST", "/api/predict", encoded(np.zeros((1001, 1000, 3), np.uint8)))
    assert status == 400 and "1000 × 1001 pixels; at most 1,000,000 are decoded" in answer["error"]


def test_a_memory_that_another_process_changes_is_refused_and_followed(served, model):
    client, _ = served
    image = pixels(NEW, 1, "test")[0]
    folder = model.workdir / "memory"
    with edit.editing(folder):
        status, answer = client("POST", "/api/rows?label=eight", encoded(image))
        assert status == 423 and "another process is changing the memory" in answer["error"]
    other = rac_jax.load(model.workdir, mesh__data=1)
    other.teach(image, "eight")
    assert model.live.refresh() or client.get("/health")["version"] == manifest.read(folder).version
    assert client.predict(image)["label"] == "eight"


def test_the_page_and_the_description_need_no_network(standing):
    client, _ = standing
    for path, kind in (("/", "text/html"), ("/docs", "text/html"), ("/static/page.js", "text/javascript")):
        status, headers, content = client.raw("GET", path)
        assert status == 200 and headers["content-type"].startswith(kind)
        assert b"http://" not in content.replace(b"http://host:port", b"").replace(b"http://www.w3.org", b"")
        assert b"https://" not in content
        assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in headers["content-security-policy"] and "server" not in headers
    paths = client.get("/openapi.json")["paths"]
    wanted = "/api/predict /api/search /api/rows /api/rows/{row} /api/sources /api/classes /health /metrics"
    assert set(wanted.split()) <= set(paths)
    assert client.get("/api/run")["editable"] is True


def test_the_description_has_an_answer_or_a_list_of_answers_and_errors(standing):
    described = standing[0].get("/openapi.json")
    schema = described["paths"]["/api/predict"]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    answer, unusable = ({"$ref": f"#/components/schemas/{name}"} for name in ("Answer", "Unusable"))
    one, several = schema["anyOf"]
    assert one == answer and several["type"] == "array" and several["items"]["anyOf"] == [answer, unusable]
    assert set(described["components"]["schemas"]["Unusable"]["properties"]) == {"image", "error"}


def test_examples_are_of_the_memory_where_the_data_are_not(standing):
    client, _ = standing
    found = client.get("/api/examples")
    assert found["split"] == "" and len(found["some"]) == 12
    path = f"/api/examples/{found['some'][0]['number']}?of=anything&small=true"
    assert client.raw("GET", path)[2].startswith(b"\xff\xd8")


@pytest.mark.slow
def test_a_run_without_a_memory_is_served(tmp_path):
    import tests.tiny as tiny

    config = tiny.config("base")
    config.train.steps = 1
    train.train(config, tmp_path / "run", evaluated=False)
    model = rac_jax.load(tmp_path / "run", mesh__data=1)
    with serving(model) as (client, _):
        assert set(client.predict(pixels(1, 1)[0])) == {"label", "probability", "voices"} | STATE
        assert client.get("/api/run")["memory"] is False and client.get("/health")["rows"] == 0
        assert client("POST", "/api/rows?label=a", encoded(pixels(1, 1)[0]))[0] == 409
        assert client.raw("GET", "/api/sources")[0] == 409


def test_a_server_that_only_reads_and_gives_sets_of_labels(model):
    image, sets = pixels(1, 1)[0], LabelSets(0.9, 0.0, threshold=-0.01)  # all labels of at least a hundredth
    with serving(model, read_only=True, sets=sets) as (client, _):
        answer = client.predict(image)
        (expected,) = model.live.answering.answers([data.eval_transform(model.config)(image, None)], sets)
        assert answer["labels"] == expected["labels"] and answer["labels"][0] == answer["label"]
        run = client.get("/api/run")
        assert run["coverage"] == 0.9 and run["calibrated"] is False  # these were calibrated with no memory
        status, answer = client("POST", "/api/rows?label=a", encoded(pixels(1, 1)[0]))
        assert status == 403 and "does not edit" in answer["error"]
        assert client.get("/api/run")["editable"] is False and client.predict(pixels(1, 1)[0])["label"]


def test_sets_of_labels_are_calibrated_until_an_edit(model):
    sets = LabelSets(0.9, 0.0, -0.01, memory=model.live.answering.run.memory_record()["memory"])
    with serving(model, sets=sets) as (client, _):
        assert client.get("/api/run")["calibrated"] is True
        assert client("POST", "/api/rows?label=a", encoded(pixels(NEW, 1)[0]))[0] == 201
        assert client.get("/api/run")["calibrated"] is False
        assert client("POST", "/api/sources/taught/disable")[0] == 200
        assert client.get("/api/run")["calibrated"] is True  # the same rows as before


def test_head_is_answered_as_get_without_the_body(standing):
    client, _ = standing
    for path in ("/", "/health", "/api/run", "/static/page.js"):
        (status, headers, content), (as_head, its_headers, nothing) = client.raw("GET", path), client.raw("HEAD", path)
        assert status == as_head == 200 and content and nothing == b""
        assert {**its_headers, "date": 0} == {**headers, "date": 0}
    assert client.raw("HEAD", "/api/rows/99999")[0] == 404


def test_a_memory_that_cannot_be_written_is_still_asked(served, model, monkeypatch):
    client, _ = served
    image = pixels(NEW, 1, "test")[0]
    before = client.predict(image)

    def full(*_):
        raise OSError("keys-0.bin cannot be written: No space left on device")

    monkeypatch.setattr("rac_jax.memory.edit._append", full)
    status, answer = client("POST", "/api/rows?label=eight", encoded(image))
    assert status == 507 and answer == {"error": "the memory cannot be written; the server's log says why"}
    monkeypatch.undo()
    same(client.predict(image), before)
    assert client("POST", "/api/rows?label=eight", encoded(image))[0] == 201
