"""A headless Chromium that shows a folder, and modules of the examples."""

import contextlib
import functools
import http.server
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import REPOSITORY

EXAMPLE = REPOSITORY / "examples" / "web"
PACKAGES = EXAMPLE / "node_modules"
WASM = REPOSITORY / "native" / "wasm" / "dist" / "engine.wasm"
# Runs in the example's page: token ids, and text, of every text that is given.
TRANSLATE = """
    const [texts, done] = arguments;
    (async () => {
      const { load } = await import("./app.mjs");
      const translator = await load();
      const found = [];
      for (const text of texts) {
        const { tokens, text: written } = await translator.translate(text);
        found.push([tokens, written]);
      }
      return found;
    })().then(done, (error) => done(String(error)));
"""


class _Files(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: Any) -> None:
        pass


class _IsolatedFiles(_Files):
    """Pages that are cross-origin isolated, so that they may have threads."""

    def end_headers(self) -> None:
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        super().end_headers()


@contextlib.contextmanager
def open_page(folder: Path, address: str = "", isolated: bool = True) -> Iterator[Any]:
    """A browser with a page of a folder, which needs npm packages; skips the test without them."""
    if not PACKAGES.exists():
        pytest.skip("needs npm packages: make examples/web/node_modules/ready")
    with open_folder(folder, address, isolated) as browser:
        yield browser


@contextlib.contextmanager
def open_example(folder: Path, bundle: Path, engine: str, isolated: bool = True) -> Iterator[Any]:
    """A browser with the web example, served from a new folder with a bundle in it.

    Args:
        folder: is made.
        bundle: that the page decodes with.
        engine: "tfexport", without which the test is skipped if it is not built, or "onnxruntime".
        isolated: whether the page may have threads.
    """
    if engine == "tfexport" and not WASM.exists():
        pytest.skip("needs the engine in WebAssembly: make wasm")
    folder.mkdir()
    for part in EXAMPLE.iterdir():
        if part.name != "model.bundle":
            (folder / part.name).symlink_to(part)
    (folder / "model.bundle").symlink_to(bundle)
    with open_page(folder, f"?engine={engine}", isolated) as browser:
        yield browser


@contextlib.contextmanager
def open_folder(folder: Path, address: str = "", isolated: bool = False) -> Iterator[Any]:
    """A browser with a page of a folder that is served; skips the test where there is none."""
    handler = functools.partial(_IsolatedFiles if isolated else _Files, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            with open_address(f"http://127.0.0.1:{server.server_port}/{address}") as browser:
                yield browser
        finally:
            server.shutdown()


@contextlib.contextmanager
def open_address(address: str, microphone: bool = False) -> Iterator[Any]:
    """A browser with a page that somebody serves; skips the test where there is none.

    Args:
        address: of the page.
        microphone: whether there is one, which beeps, and which pages may use.
    """
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (chromium and driver):
        pytest.skip("needs Debian's chromium and chromium-driver")
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for argument in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "disable-gpu"):
        options.add_argument(f"--{argument}")
    if microphone:
        options.add_argument("--use-fake-device-for-media-stream")
        options.add_argument("--use-fake-ui-for-media-stream")
    browser = webdriver.Chrome(options, webdriver.ChromeService(driver))
    try:
        browser.set_script_timeout(300)
        browser.get(address)
        yield browser
    finally:
        browser.quit()


def wait_for_status(page: Any, text: str) -> None:
    """Wait until the element "status" shows a text."""
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(page, 90).until(lambda page: text in page.find_element("id", "status").text)
