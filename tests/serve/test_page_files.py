"""The page of models that take sound or pictures, in a headless Chromium with a microphone."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Once
from tests.serve.pages import text_of, wait
from tests.serve.servers import Server, serving
from tests.serve.test_pictures import png
from tests.serve.test_transcriptions import PROGRAM, send, sound
from tests.support.browser import open_address
from tests.support.picture_bundle import make_picture_bundle
from tests.support.spoken_bundle import write_spoken_bundle

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", name="server")
def _server(once: Once, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("files")
    spoken = write_spoken_bundle(folder / "spoken.bundle")
    pictures = once("pictures", make_picture_bundle) / "pictures.bundle"
    with serving(folder, spoken, pictures, program=PROGRAM) as running:
        yield running


@pytest.fixture(scope="module", name="browser")
def _browser(server: Server) -> Iterator[Any]:
    with open_address(f"{server.url}/", microphone=True) as browser:
        yield browser


@pytest.fixture(name="page")
def _page(browser: Any, server: Server) -> Iterator[Any]:
    """The page, just opened; its scripts and its policy have nothing to complain of."""
    browser.get(f"{server.url}/")
    browser.get_log("browser")
    wait(browser.find_element("id", "model").is_displayed)
    yield browser
    assert browser.get_log("browser") == []


def texts(server: Server, file: bytes, *fields: tuple[str, str]) -> list[str]:
    answer = send(server, ("file", file), ("response_format", "verbose_json"), *fields)
    return [each["text"].strip() for each in answer.json["segments"]]


def shown(page: Any) -> list[str]:
    """The segments that are shown, without their times."""
    pane = page.find_element("id", "translation")
    wait(lambda: pane.get_attribute("aria-busy") == "false" and text_of(page, "translation"))
    code = """return [...arguments[0].childNodes].filter((it) => it.nodeType === Node.TEXT_NODE)
      .map((it) => it.data)"""
    return [text.strip() for text in page.execute_script(code, pane)]


def choose(page: Any, folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    page.find_element("id", "file").send_keys(str(folder / name))


def test_the_microphone_is_recorded_and_transcribed(page: Any, server: Server) -> None:
    page.execute_script("""
      const before = window.fetch;
      window.fetch = async (path, options) => {
        window.sent = options.body.get("file");
        return before(path, options);
      };
    """)
    button = page.find_element("id", "record")
    assert button.text == "Record"
    button.click()
    wait(lambda: button.text == "Stop")
    page.execute_async_script("setTimeout(arguments[0], 500)")
    button.click()
    found = shown(page)
    assert (button.text, button.get_attribute("aria-pressed")) == ("Record", "false")
    code = """
      const [done] = arguments, reader = new FileReader();
      reader.onload = () => done(reader.result);
      reader.readAsDataURL(window.sent);
    """
    file = base64.b64decode(page.execute_async_script(code).partition(",")[2])
    soundfile = pytest.importorskip("soundfile")
    (folder := server.log.parent / "recorded.wav").write_bytes(file)
    samples, rate = soundfile.read(folder)
    assert rate == 16_000
    assert 0.3 < len(samples) / rate < 20
    assert abs(samples).max() > 0.01  # Chromium's microphone beeps
    assert found == texts(server, file)
    assert page.find_element("id", "player").is_displayed()


def test_sounds_are_files_with_languages_and_in_english(
    page: Any, server: Server, tmp_path: Path
) -> None:
    file = sound(0.7, 8)
    choose(page, tmp_path, "a.wav", file)
    assert shown(page) == texts(server, file)
    code = "return [...document.querySelectorAll('#translation time')].map((it) => it.textContent)"
    assert page.execute_script(code)[0] == "0:00"
    names = [it.text for it in page.find_elements("css selector", "#spoken option")]
    assert names == ["found by the model", "English", "French", "German"]
    page.find_element("id", "spoken").send_keys("German")
    german = texts(server, file, ("language", "de"))
    wait(lambda: shown(page) == german)
    page.find_element("id", "english").click()
    answer = send(server, ("file", file), path="/v1/audio/translations").json["text"]
    wait(lambda: text_of(page, "announcement") == answer)
    assert not page.find_element("id", "source").is_displayed()


def test_what_the_server_does_not_read_the_browser_decodes(page: Any, tmp_path: Path) -> None:
    """WebM as Chromium itself records it; what is no sound is refused by the server."""
    made = page.execute_async_script("""
      const [done] = arguments;
      (async () => {
        const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
        const recorder = new MediaRecorder(stream, { mimeType: "audio/webm;codecs=opus" });
        const parts = [];
        recorder.ondataavailable = ({ data }) => parts.push(data);
        recorder.onstop = () => {
          const chosen = new DataTransfer(), input = document.getElementById("file");
          chosen.items.add(new File(parts, "a.webm", { type: "audio/webm" }));
          input.files = chosen.files;
          input.dispatchEvent(new Event("change"));
          done(chosen.files[0].size);
        };
        recorder.start();
        setTimeout(() => recorder.stop(), 300);
      })().catch((error) => done(String(error)));
    """)
    assert isinstance(made, int), made
    assert shown(page)
    assert text_of(page, "error") == ""
    choose(page, tmp_path, "b.webm", b"\x1aE\xdf\xa3" + bytes(99))
    wait(lambda: "is a WebM or Matroska file" in text_of(page, "error"))
    assert text_of(page, "translation") == ""
    assert all("status of 400" in entry["message"] for entry in page.get_log("browser"))


def test_pictures_are_read(page: Any, server: Server, tmp_path: Path) -> None:
    page.find_element("id", "model").send_keys("pictures")
    wait(lambda: page.find_element("id", "source-name").text == "Picture")
    assert not page.find_element("id", "record").is_displayed()
    content = png(9, 7)
    choose(page, tmp_path, "a.png", content)
    body = {"model": "pictures", "images": [base64.b64encode(content).decode()]}
    text = server.post("/v1/translate", body).json["translations"][0]["text"]
    wait(lambda: text_of(page, "translation") == text)
    assert page.find_element("id", "picture").is_displayed()
