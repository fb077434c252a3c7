"""The page in a real browser: drop a picture, teach a new class, undo, switch a source off."""

import os
import re
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest

from rac_jax.calibration.coverage import LabelSets
from rac_jax.memory import edit
from tests.serve import browser
from tests.serve.conftest import encoded, pixels, serving

NEW = 8
HOLD = """
const ask = window.fetch, held = new Promise((go) => { window.go = go; });
window.fetch = async (path, options) => {
  if (path.startsWith(arguments[0])) await held;
  return ask(path, options);
};
"""  # requests of a path wait until `go()`

pytestmark = pytest.mark.skipif(browser.programs() is None, reason="chromium and chromedriver are not installed")


@pytest.fixture(scope="module")
def window():
    with browser.opened() as found:
        found.size(1280, 900)
        yield found


@pytest.fixture
def page(window, served):
    client, _ = served
    window.errors()
    window.open(f"http://127.0.0.1:{client.port}/")
    window.wait("return document.querySelectorAll('#examples img').length === 12")
    window.wait("return document.querySelectorAll('#classes li').length === 4")
    yield window
    assert not window.errors()


def label(page):
    """What the page says the picture is; without its probability."""
    return page.run("return document.querySelector('#label')?.firstChild.textContent ?? ''")


def until_label(page, wanted):
    page.wait("return document.querySelector('#label')?.firstChild.textContent === arguments[0]", wanted)


def keep(page, name):
    """A screenshot, where the environment names a folder for them."""
    if folder := os.environ.get("RAC_JAX_SCREENSHOTS"):
        page.screenshot(Path(folder, f"{name}.png"))


def shown(page):
    """Scroll to each image, since those far below the screen load only then: all are there and not broken."""
    page.wait(
        """
        const waited = [...document.images].filter((one) => !one.hidden && !(one.complete && one.naturalWidth));
        for (const one of waited) one.scrollIntoView({ block: "center" });
        return waited.length === 0;
        """
    )
    page.run("scrollTo(0, 0)")


def test_a_new_class_is_taught_undone_and_its_source_switched_off(page, served):
    client, _ = served
    image = pixels(NEW, 1, "test")[0]
    before = client.predict(image)
    page.drop(encoded(image), "drawing.png")
    until_label(page, before["label"])
    assert page.text("#caption") == "drawing.png" and not page.run("return document.querySelector('#preview').hidden")
    voices = page.run("return [...document.querySelectorAll('.voice')].map((one) => one.innerText.split('\\n'))")
    assert [voice[1] for voice in voices] == [vote["label"] for vote in before["voices"].values()]
    widths = page.run("return [...document.querySelectorAll('.voice .fill')].map((one) => parseFloat(one.style.width))")
    assert widths == pytest.approx([100 * vote["probability"] for vote in before["voices"].values()], abs=0.1)
    assert page.run("return document.querySelectorAll('.tile').length") == 12
    box = "const one = document.querySelector(arguments[0]).getBoundingClientRect(); return [one.width, one.height]"
    assert page.run(box, "#preview") == pytest.approx(page.run(box, ".picture"), abs=4)  # all of it is visible
    near = before["neighbours"][0]
    first = page.run("return document.querySelector('.tile').innerText.split(/\\n/)")
    assert first == [near["label"], f"{near['similarity']:.2f}", "train"]
    shown(page)

    page.write("#correct", "eight")
    page.click(".teach button")
    until_label(page, "eight")
    page.wait("return document.querySelector('#notice').innerText.startsWith('Taught: this is “eight”.')")
    assert page.text(".was") == f"before: {before['label']}" and page.text(".tile .tag") == "taught"
    assert client.predict(image)["label"] == "eight"
    sources = page.run("return [...document.querySelectorAll('#sources strong')].map((one) => one.innerText)")
    assert sources == ["train", "taught"] and page.text(".tag.new") == "new"
    shown(page)
    keep(page, "taught")

    page.click("#sources li:nth-child(2) .switch")
    until_label(page, before["label"])
    page.wait("return document.querySelector('#sources li:nth-child(2) .switch').ariaChecked === 'false'")
    assert client.predict(image)["label"] == before["label"]
    page.click("#sources li:nth-child(2) .switch")
    until_label(page, "eight")

    page.click("#notice button")
    page.wait("return document.querySelector('#notice').innerText.startsWith('Undone')")
    until_label(page, before["label"])
    assert client.get("/health")["rows"] == 40 and len(client.get("/api/sources")) == 1


def test_each_picture_that_was_taught_can_be_undone(page, served):
    client, _ = served
    rows = "return document.querySelector('#classes').innerText"
    for number, (image, name) in enumerate(zip(pixels(NEW, 2, "test"), ("eight", "nine"), strict=True)):
        page.drop(encoded(image), f"{number}.png")
        page.wait("return document.querySelector('#caption').innerText === arguments[0]", f"{number}.png")
        page.write("#correct", name)
        page.click(".teach button")
        page.wait(
            "return document.querySelector('#notice').innerText.includes(arguments[0])", f"Taught: this is “{name}”"
        )
    page.click("#examples button:nth-child(5)")
    page.wait("return document.querySelector('#caption').innerText.startsWith('Its label')")
    assert page.text("#notice") == "Undo “nine”"
    page.click("#notice button")
    page.wait("return document.querySelector('#notice').innerText.startsWith('Undone: the picture of “nine”')")
    assert "nine" not in page.run(rows) and "eight" in page.run(rows) and client.get("/health")["rows"] == 41
    page.drop(b"no image", "notes.txt")
    page.wait("return document.querySelector('#notice').innerText.includes('not a usable image')")
    assert page.text("#notice button") == "Undo “eight”"
    assert client("DELETE", "/api/sources/taught")[0] == 200
    page.click("#notice button")
    page.wait("return document.querySelector('#notice').innerText.includes('there is no row')")
    assert page.run("return document.querySelectorAll('#notice button').length") == 0
    assert page.run("return document.querySelectorAll('#sources li').length") == 1  # as it is on the server
    assert len(page.errors()) == 2  # the refusals of 400 and 404


@pytest.mark.parametrize("held", ["/api/rows", "/api/predict"])
def test_a_picture_that_is_dropped_during_an_edit_is_the_one_that_is_shown(page, served, held):
    client, _ = served
    first, second = pixels(NEW, 1, "test")[0], pixels(1, 3, "test")[2]
    said = client.predict(second)["label"]
    assert said != client.predict(first)["label"]
    page.drop(encoded(first), "first.png")
    page.wait("return document.querySelector('#caption').innerText === 'first.png'")
    page.run(HOLD, held)
    page.write("#correct", "eight")
    if held == "/api/rows":
        page.click("#teach")
    page.drop(encoded(second), "second.png")
    if held == "/api/predict":
        page.click("#teach")
        page.wait("return document.querySelector('#sources').innerText.includes('taught')")
    else:
        until_label(page, said)
    page.run("go()")
    page.wait("return document.querySelector('#notice').innerText.startsWith('Taught: this is “eight”.')")
    until_label(page, said)
    assert page.text("#caption") == "second.png" and page.text(".was") == ""


def test_the_page_works_once_the_server_answers(window, served):
    client, _ = served
    down = "const ask = fetch; window.fetch = (...of) => (window.up ? ask(...of) : Promise.reject(new TypeError()));"
    image = encoded(pixels(1, 3, "test")[2])
    with window.ahead(down):
        window.open(f"http://127.0.0.1:{client.port}/")
        for _ in range(2):
            window.wait("return document.querySelector('#notice').innerText === 'The server does not answer.'")
            window.run("document.querySelector('#notice').innerText = ''")
            window.drop(image, "a.png")
        window.wait("return document.querySelector('#notice').innerText === 'The server does not answer.'")
        window.run("window.up = true")
        window.drop(image, "a.png")
        window.wait("return document.querySelectorAll('.tile').length === 12")
        window.wait("return document.querySelectorAll('#examples img').length === 12")
        assert window.text("#notice") == ""
    assert not window.errors()


def test_edits_from_elsewhere_are_seen_with_the_next_answer(page, served, model):
    client, _ = served
    image = encoded(pixels(NEW, 1, "test")[0])
    status, row = client("POST", "/api/rows?label=eight", image)
    assert status == 201
    page.drop(image, "a.png")
    until_label(page, "eight")
    assert "41 images · 5 classes" in page.text("#run") and "taught" in page.text("#sources")
    assert client("DELETE", f"/api/rows/{row['row']}")[0] == 200
    with edit.editing(model.workdir / "memory") as editor:
        assert editor.compact() == 1
    model.live.refresh()
    keys = client.get("/api/run")["keys"]
    page.drop(image, "b.png")
    page.wait("return document.querySelector('#caption').innerText === 'b.png'")
    page.wait(
        """
        const images = [...document.querySelectorAll("#examples img, .tile img, #classes img")];
        const keys = images.map((one) => new URL(one.src).searchParams.get("of"));
        return images.length === 12 + 12 + 4 * 6 && keys.every((one) => one === arguments[0]);
        """,
        keys,
    )
    assert "40 images · 4 classes" in page.text("#run") and "taught" not in page.text("#sources")


def test_sets_of_labels_say_that_they_are_from_before_an_edit(window, model):
    sets = LabelSets(0.9, 0.0, -0.01, memory=model.live.answering.run.memory_record()["memory"])
    with serving(model, sets=sets) as (client, _):
        window.open(f"http://127.0.0.1:{client.port}/")
        window.wait("return document.querySelectorAll('#classes li').length === 4")
        window.drop(encoded(pixels(NEW, 1, "test")[0]), "a.png")
        window.wait("return document.querySelector('#labels')?.innerText.startsWith('With 90 % coverage: the ')")
        window.write("#correct", "eight")
        window.click("#teach")
        window.wait("return document.querySelector('#label').firstChild.textContent === 'eight'")
        assert window.text("#labels").startswith("With 90 % coverage (calibrated before the last edits): eight")
        keep(window, "sets")
    assert not window.errors()


def test_the_keyboard_stays_where_it_is(page):
    active = "return document.activeElement.id"
    page.drop(encoded(pixels(NEW, 1, "test")[0]), "a.png")
    page.wait("return document.querySelectorAll('.tile').length > 0")
    page.write("#correct", "eight")
    page.write("#teach", " ")  # the space bar
    page.wait("return document.querySelector('#notice').innerText.startsWith('Taught')")
    assert page.run(active) == "teach"
    page.write("[id='use taught']", " ")
    page.wait("return document.querySelector('[id=\"use taught\"]').ariaChecked === 'false'")
    page.wait("return !document.querySelector('#answer').ariaBusy")
    assert page.run(active) == "use taught"
    for scheme in ("light", "dark"):
        page.colours(scheme)
        page.wait("return document.documentElement.dataset.theme === arguments[0]", scheme)
        assert contrast(page, "--off", "--card") >= 3
        keep(page, f"off_{scheme}")
    page.colours("light")
    page.write("#undo", " ")
    page.wait("return document.querySelector('#notice').innerText.startsWith('Undone')")
    assert page.run(active) == "notice"


def contrast(page, *names):
    """The ratio of two colours of the style sheet, as WCAG defines it."""
    get = "return getComputedStyle(document.documentElement).getPropertyValue(arguments[0]).trim()"
    found = []
    for name in names:
        shares = np.array([int(part, 16) for part in re.findall("[0-9a-f]{2}", page.run(get, name))]) / 255
        linear = np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)
        found.append(linear @ (0.2126, 0.7152, 0.0722) + 0.05)
    return max(found) / min(found)


def test_the_page_works_where_cookies_are_blocked(window, standing):
    client, _ = standing
    blocked = """
    for (const name of ["localStorage", "sessionStorage"])
      Object.defineProperty(window, name, { get() { throw new DOMException("denied", "SecurityError"); } });
    """
    theme = "return document.documentElement.dataset.theme"
    with window.ahead(blocked):
        window.open("about:blank")
        window.open(f"http://127.0.0.1:{client.port}/#token=one")
        window.wait("return document.querySelectorAll('#classes li').length === 4")
        before = window.run(theme)
        window.click("#theme")
        assert {before, window.run(theme)} == {"light", "dark"}
        window.open(f"http://127.0.0.1:{client.port}/docs")
        window.wait("return document.querySelectorAll('.operation').length > 10")
    assert not window.errors()


def test_pictures_are_asked_for_with_the_name_of_the_server(page, served):
    client, _ = served
    keys = client.get("/api/run")["keys"]
    sources = page.run("return [...document.querySelectorAll('#examples img, #classes img')].map((one) => one.src)")
    assert len(sources) == 12 + 4 * 6
    assert {parse_qs(urlsplit(source).query)["of"][0] for source in sources} == {keys}


def test_an_example_is_picked_and_an_unusable_file_explained(page):
    page.click("#examples button:nth-child(5)")
    page.wait("return document.querySelectorAll('.tile').length === 12")
    said = label(page)
    assert page.text("#caption") == f"Its label: {said}"  # it is in the memory
    page.drop(b"no image", "notes.txt")
    page.wait("return document.querySelector('#notice').innerText.includes('not a usable image')")
    assert label(page) == said and page.text("#caption") == f"Its label: {said}"
    (noted,) = page.errors()
    assert "/api/predict - Failed to load resource: the server responded with a status of 400" in noted


def test_a_picture_is_pasted(page, served):
    client, _ = served
    image = pixels(1, 3, "test")[2]
    page.paste(encoded(image))
    until_label(page, client.predict(image)["label"])
    assert page.text("#caption") == "Pasted"


def test_a_token_with_any_characters_is_taken_from_the_address(window, served):
    client, _ = served
    for written, token in (("50%25%2F", "50%/"), ("50%", "50%")):  # as it is printed, and as it was typed
        window.open("about:blank")
        window.open(f"http://127.0.0.1:{client.port}/#token={written}")
        window.wait("return document.querySelectorAll('#classes li').length === 4")
        assert window.run("return sessionStorage.getItem('token')") == token
    assert not window.errors()


def test_names_are_text_and_not_markup(page, served):
    client, _ = served
    hostile = "<img src=x onerror=alert(1)>"
    page.drop(encoded(pixels(NEW, 2, "test")[1]), f"{hostile}.png")
    page.wait("return document.querySelectorAll('.tile').length > 0")
    page.write("#correct", hostile)
    page.click(".teach button")
    until_label(page, hostile)
    assert page.run("return document.querySelectorAll('img[src=x]').length") == 0
    assert client.get("/api/classes")[-1]["name"] == hostile and hostile in page.text("#classes")


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_the_screen_in_light_and_dark(page, width, scheme):
    page.colours(scheme)
    page.size(width, 844)
    page.click("#examples button:nth-child(1)")
    page.wait("return document.querySelectorAll('.tile').length === 12")
    shown(page)
    assert page.run("return document.documentElement.scrollWidth") == width  # nothing sticks out
    cards = "return [...document.querySelectorAll('.card')].every((one) => one.scrollWidth <= one.clientWidth)"
    assert page.run(cards)
    light = page.run("return getComputedStyle(document.body).backgroundColor.match(/\\d+/g)[0] > 128")
    assert light == (scheme == "light")
    keep(page, f"{scheme}_{width}")
    page.size(1280, 900)


def test_the_description_of_the_api_is_shown(window, standing):
    client, _ = standing
    window.open(f"http://127.0.0.1:{client.port}/docs")
    window.wait("return document.querySelectorAll('.operation').length > 10")
    shown = window.text("main")
    keep(window, "docs")
    assert shown.count("Another process is changing the memory.") == 1 and "curl" in shown
    assert "familiarity: number or null" in shown and "} or [Answer or {image: string, error: string}, …]" in shown
    assert "/api/predict" in shown and "/api/sources/{name}/{change}" in shown
    assert not window.errors()
