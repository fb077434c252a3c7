"""A browser, driven by the WebDriver protocol: Debian's chromium and its driver."""

import base64
import contextlib
import json
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
)  # fmt: skip
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the protocol's name for a reference to an element


def programs():
    """The paths of the browser and of its driver; None where there are none."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None


class Browser:
    """A window."""

    def __init__(self, address):
        self._address = address

    def ask(self, method, path="", **values):
        body = json.dumps(values).encode() if method == "POST" else None
        request = urllib.request.Request(self._address + path, body, method=method)
        try:
            with urllib.request.urlopen(request, timeout=300) as response:
                return json.load(response)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(json.load(error)["value"]["message"]) from None

    def open(self, url):
        self.ask("POST", "/url", url=url)

    def run(self, script, *arguments):
        """The value of a script's `return`."""
        return self.ask("POST", "/execute/sync", script=script, args=list(arguments))

    def find(self, selector):
        return self.ask("POST", "/element", using="css selector", value=selector)[ELEMENT]

    def click(self, selector):
        self.ask("POST", f"/element/{self.find(selector)}/click")

    def write(self, selector, text):
        self.ask("POST", f"/element/{self.find(selector)}/value", text=text)

    def text(self, selector):
        return self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector)

    def wait(self, script, *arguments, seconds=120):
        """Until the script's value is true; the value."""
        end = time.monotonic() + seconds
        while not (found := self.run(script, *arguments)):
            assert time.monotonic() < end, f"{script} {arguments}: {self.text('body')}"
            time.sleep(0.05)
        return found

    def drop(self, content, name):
        """Drop a file on the page, as a hand would."""
        self.run(
            """
            const bytes = Uint8Array.from(atob(arguments[0]), (letter) => letter.charCodeAt(0));
            const data = new DataTransfer();
            data.items.add(new File([bytes], arguments[1], { type: "image/png" }));
            for (const kind of ["dragenter", "dragover", "drop"])
              document.body.dispatchEvent(new DragEvent(kind, { dataTransfer: data, bubbles: true, cancelable: true }));
            """,
            base64.b64encode(content).decode(),
            name,
        )

    def paste(self, content):
        """Paste a picture into the page."""
        self.run(
            """
            const bytes = Uint8Array.from(atob(arguments[0]), (letter) => letter.charCodeAt(0));
            const clipboardData = new DataTransfer();
            clipboardData.items.add(new File([bytes], "image.png", { type: "image/png" }));
            document.body.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true }));
            """,
            base64.b64encode(content).decode(),
        )

    def size(self, width, height):
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.devtools("Emulation.setDeviceMetricsOverride", **metrics)

    def colours(self, scheme):
        """Prefer `light` or `dark`."""
        self.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def devtools(self, command, **parameters):
        return self.ask("POST", "/goog/cdp/execute", cmd=command, params=parameters)

    @contextlib.contextmanager
    def ahead(self, script):
        """Run a script in each page that is opened, before the page's own."""
        added = self.devtools("Page.addScriptToEvaluateOnNewDocument", source=script)
        try:
            yield
        finally:
            self.devtools("Page.removeScriptToEvaluateOnNewDocument", **added)

    def screenshot(self, path):
        """The whole page."""
        picture = self.devtools("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(picture))

    def errors(self):
        """What the page logged as errors, refusals of its policy among them."""
        logged = self.ask("POST", "/se/log", type="browser")
        return [entry["message"] for entry in logged if entry["level"] == "SEVERE"]


@contextlib.contextmanager
def opened():
    """A new window of a new browser."""
    browser, driver = programs()
    with socket.socket() as free, tempfile.TemporaryDirectory() as folder:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        process = subprocess.Popen([driver, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            outside = Browser(f"http://127.0.0.1:{port}")
            _wait_for(outside)
            options = {"binary": browser, "args": [*FLAGS, f"--user-data-dir={folder}"]}
            wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
            session = outside.ask("POST", "/session", capabilities={"alwaysMatch": wanted})["sessionId"]
            window = Browser(f"http://127.0.0.1:{port}/session/{session}")
            yield window
            window.ask("DELETE")
        finally:
            process.terminate()
            process.wait()


def _wait_for(outside):
    end = time.monotonic() + 120
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            outside.ask("GET", "/status")
            return
        time.sleep(0.05)
    raise AssertionError("chromedriver does not start")
