"""The page at "/", in a headless Chromium."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serve.servers import Server, serving
from tests.support.browser import open_address

pytestmark = pytest.mark.slow

TEXT = "w4 w5. w6 w7 w8\nw9"


@pytest.fixture(scope="module")
def browser(server: Server) -> Iterator[Any]:
    with open_address(f"{server.url}/") as browser:
        yield browser


@pytest.fixture
def page(browser: Any, server: Server) -> Iterator[Any]:
    """The page, wide and just opened; its scripts and its policy have nothing to complain of."""
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.get(f"{server.url}/")
    browser.get_log("browser")
    yield browser
    assert browser.get_log("browser") == []


def key(name: str) -> str:
    from selenium.webdriver.common.keys import Keys

    return str(getattr(Keys, name))


def wait(condition: Any, seconds: float = 30.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return found


def text_of(page: Any, name: str) -> str:
    return str(page.execute_script("return document.getElementById(arguments[0]).textContent", name))


def words(page: Any) -> list[Any]:
    return list(page.find_elements("css selector", ".word"))


def options(page: Any) -> list[Any]:
    return list(page.find_elements("css selector", "#alternatives [role=option]"))


def focused(page: Any) -> Any:
    return page.switch_to.active_element


def press(page: Any, *names: str) -> None:
    for name in names:
        focused(page).send_keys(key(name) if len(name) > 1 else name)


def expected(server: Server, text: str) -> str:
    answer = server.post("/v1/translate", {"texts": [text]})
    return str(answer.json["translations"][0]["text"])


def write(page: Any, text: str) -> None:
    """Type a text, and wait for words that one can go to."""
    page.find_element("id", "source").send_keys(text)
    wait(lambda: words(page))


def marks(page: Any) -> dict[str, float]:
    """The shaded words of the source, with how much."""
    code = """return [...document.querySelectorAll("#mirror mark")].map((mark) =>
      [mark.textContent, Number(mark.style.getPropertyValue("--weight"))])"""
    return dict(page.execute_script(code))


def test_text_is_translated_as_one_types(page: Any, server: Server) -> None:
    for typed in ("w4 ", "w5. w6 w7", " w8\nw9"):
        page.find_element("id", "source").send_keys(typed)
    wait(lambda: text_of(page, "translation") == expected(server, TEXT))
    wait(lambda: words(page))
    assert text_of(page, "translation") == expected(server, TEXT)
    assert text_of(page, "announcement") == expected(server, TEXT)
    assert page.find_element("id", "source-name").text == "German"
    assert page.find_element("id", "target-name").text == "English"
    page.find_element("id", "source").clear()
    wait(lambda: text_of(page, "translation") == "")


def test_pieces_are_shown_while_they_come(page: Any, server: Server) -> None:
    """The text grows: every state of it is a beginning of the next."""
    page.execute_script("""
      window.states = [];
      new MutationObserver(() => {
        states.push(document.getElementById("translation").textContent);
      }).observe(document.getElementById("translation"), { childList: true });
    """)
    write(page, "w4 w5 w6 w7 w8")
    states = [state for state in page.execute_script("return window.states") if state]
    assert len(set(states)) > 2
    assert all(later.startswith(state) for state, later in zip(states, states[1:], strict=False))
    assert states[-1] == expected(server, "w4 w5 w6 w7 w8")


def test_each_key_ends_the_request_that_runs(page: Any) -> None:
    page.execute_script("""
      const before = window.fetch;
      window.signals = [];
      window.fetch = (path, options) => {
        if (!path.endsWith("translate")) return before(path, options);
        signals.push(options.signal);
        return new Promise((_, reject) => options.signal.addEventListener("abort", () =>
          reject(options.signal.reason)));
      };
    """)
    aborted = "return window.signals.map((signal) => signal.aborted)"
    source = page.find_element("id", "source")
    source.send_keys("w4")
    wait(lambda: page.execute_script(aborted) == [False])
    source.send_keys(" ")
    assert page.execute_script(aborted) == [True]
    source.send_keys("w5")
    wait(lambda: page.execute_script(aborted) == [True, False])
    assert text_of(page, "error") == ""


def test_a_word_shows_what_it_attends_to(page: Any, server: Server) -> None:
    write(page, TEXT)
    from selenium.webdriver import ActionChains

    body = {"texts": [TEXT], "options": {"return_attention": True}}
    first, second, third = server.post("/v1/translate", body).json["translations"][0]["sentences"]
    chosen = words(page)[0]
    ActionChains(page).move_to_element(chosen).perform()
    shaded = wait(lambda: marks(page))
    # One piece a word; the last column is of the end token, which no word shows.
    assert list(shaded) == ["w4", "w5."]
    assert list(shaded.values()) == pytest.approx(first["attention"][0][:-1], abs=1e-3)
    page.execute_script("arguments[0].focus()", words(page)[-1])
    wait(lambda: list(marks(page)) == ["w9"])
    assert marks(page)["w9"] == pytest.approx(third["attention"][-1][0], abs=1e-3)
    press(page, "TAB")
    assert second["attention"]


def test_an_alternative_is_chosen_by_click_and_goes_on_from_there(page: Any, server: Server) -> None:
    write(page, TEXT)
    body = {"texts": [TEXT], "options": {"return_attention": True}}
    sentence = server.post("/v1/translate", body).json["translations"][0]["sentences"][1]
    before = text_of(page, "translation")
    count = len(expected(server, "w4 w5.").split())
    place = count + 1  # the second word of the second sentence
    words(page)[place].click()
    found = [option.text for option in wait(lambda: options(page))]
    more = {"return_alternatives": True, "num_hypotheses": 5}
    asked = {"texts": ["w6 w7 w8"], "options": {**more, "target_prefix": [sentence["tokens"][:1]]}}
    hypotheses = server.post("/v1/translate", asked).json["translations"][0]["hypotheses"]
    beginning = sentence["text"].split()[0]
    assert found == [one["text"].removeprefix(beginning).strip() for one in hypotheses]
    assert len(found) > 1
    assert marks(page), "what the word attends to is shown while its list is open"

    options(page)[-1].click()
    wanted = before.replace(sentence["text"], hypotheses[-1]["text"], 1)
    wait(lambda: text_of(page, "translation") == wanted)
    words(page)[place + 1].click()
    again = wait(lambda: options(page))
    left = " ".join(hypotheses[-1]["text"].split()[2:])
    assert left in [option.text for option in again]


def test_it_is_used_by_keys_alone(page: Any, server: Server) -> None:
    assert focused(page).get_attribute("id") == "source"
    for typed in "w4 w5 w6":
        press(page, typed)
    wait(lambda: words(page))
    press(page, "TAB")
    assert focused(page).text == words(page)[0].text
    press(page, "ARROW_RIGHT", "ARROW_RIGHT")
    assert focused(page) == words(page)[2]
    assert marks(page)
    press(page, "END")
    assert focused(page) == words(page)[-1]
    press(page, "HOME", "ENTER")
    wait(lambda: options(page))
    assert words(page)[0].get_attribute("aria-expanded") == "true"
    wait(lambda: focused(page) in options(page))
    press(page, "ESCAPE")
    assert (focused(page), options(page)) == (words(page)[0], [])
    assert words(page)[0].get_attribute("aria-expanded") == "false"
    press(page, "ENTER")
    wait(lambda: focused(page) in options(page))
    press(page, "HOME", "ARROW_DOWN")
    chosen = focused(page).text
    assert chosen != expected(server, "w4 w5 w6")
    press(page, "ENTER")
    wait(lambda: text_of(page, "translation") == chosen)
    wait(lambda: focused(page) == words(page)[0])
    assert text_of(page, "announcement") == chosen
    press(page, "TAB")
    assert focused(page) not in words(page), "words are one stop of the Tab key"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone(page: Any, scheme: str) -> None:
    size = {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", features)
    write(page, f"{'w4' * 60} " + "w5 w6 w7 " * 10)
    words(page)[-1].click()
    wait(lambda: options(page))
    widths = "return [document.documentElement.scrollWidth, window.innerWidth]"
    assert page.execute_script(widths) == [360, 360]
    source, target = page.find_elements("css selector", ".field")
    assert source.rect["y"] + source.rect["height"] <= target.rect["y"]
    assert source.rect["width"] == target.rect["width"] > 320
    colour = page.execute_script("return getComputedStyle(document.documentElement).backgroundColor")
    levels = [int(level) for level in colour.strip("rgb()").split(",")]
    assert (max(levels) < 64) if scheme == "dark" else (min(levels) > 192)


def test_errors_are_shown_as_text(page: Any, browser: Any) -> None:
    write(page, "w4 " * 600)
    wait(lambda: "more than" in text_of(page, "error"))
    page.find_element("id", "source").clear()
    page.find_element("id", "source").send_keys("w4")
    wait(lambda: words(page))
    assert text_of(page, "error") == ""
    assert all("422" in entry["message"] for entry in browser.get_log("browser"))


def test_a_key_is_asked_for_if_the_server_wants_one(tiny_bundle: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys.txt"
    keys.write_text("sesame\n")
    with serving(tmp_path, tiny_bundle, "--api-key-file", keys) as server:
        with open_address(f"{server.url}/") as page:
            field = page.find_element("id", "key")
            wait(field.is_displayed)
            assert focused(page) == field
            field.send_keys(f"open{key('ENTER')}")
            wait(lambda: "does not know this key" in text_of(page, "error"))
            field.clear()
            field.send_keys(f"sesame{key('ENTER')}")
            wait(lambda: not field.is_displayed())
            write(page, "w4 w5")
            assert text_of(page, "translation")
            assert "sesame" not in page.page_source


def test_models_are_chosen_where_there_are_several(tiny_bundle: Path, tmp_path: Path) -> None:
    for name in ("de-en", "fr-en"):
        (tmp_path / f"{name}.bundle").symlink_to(tiny_bundle)
    bundles = [tmp_path / "de-en.bundle", tmp_path / "fr-en.bundle"]
    with serving(tmp_path, *bundles) as server, open_address(f"{server.url}/") as page:
        choice = page.find_element("id", "model")
        wait(choice.is_displayed)
        assert choice.text.split() == ["de-en", "fr-en"]
        write(page, "w4 w5")
        choice.send_keys("fr")
        wait(lambda: page.find_element("id", "source-name").text == "French")
        assert page.find_element("id", "source").get_attribute("lang") == "fr"
        wait(lambda: server.figure("tfexport_requests_total", model="fr-en") >= 2)
        wait(lambda: words(page))
