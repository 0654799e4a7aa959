"""The page at "/", in a headless Chromium."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serve.pages import (
    empty,
    focused,
    marks,
    options,
    press,
    tap,
    text_of,
    wait,
    wait_for_words,
    words,
    write,
)
from tests.serve.servers import Server, serving
from tests.support.browser import open_address
from tests.system.demo.conftest import bundle

__all__ = ["bundle"]  # a fixture: the demo model

pytestmark = pytest.mark.slow

TEXT = "Ich habe ein neues Buch gekauft. Der Hund schläft.\nJa"


@pytest.fixture(scope="module")
def server(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("page"), bundle) as running:
        yield running


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


def expected(server: Server, text: str) -> str:
    answer = server.post("/v1/translate", {"texts": [text]})
    return str(answer.json["translations"][0]["text"])


def test_text_is_translated_as_one_types(page: Any, server: Server) -> None:
    for typed in ("Ich habe ", "ein neues Buch gekauft. Der", " Hund schläft.\nJa"):
        page.find_element("id", "source").send_keys(typed)
    wait(lambda: text_of(page, "translation") == expected(server, TEXT))
    wait_for_words(page)
    assert text_of(page, "translation") == expected(server, TEXT)
    assert text_of(page, "announcement") == expected(server, TEXT)
    assert page.find_element("id", "source-name").text == "German"
    assert page.find_element("id", "target-name").text == "English"
    empty(page)
    wait(lambda: text_of(page, "translation") == "")
    server.wait_idle()


def test_pieces_are_shown_while_they_come(page: Any, server: Server) -> None:
    """The text grows: every state of it is a beginning of the next."""
    page.execute_script("""
      window.states = [];
      new MutationObserver(() => {
        states.push(document.getElementById("translation").textContent);
      }).observe(document.getElementById("translation"), { childList: true });
    """)
    write(page, "Ich habe ein neues Buch gekauft.")
    states = [state for state in page.execute_script("return window.states") if state]
    assert len(set(states)) > 2
    assert all(later.startswith(state) for state, later in itertools.pairwise(states))
    assert states[-1] == expected(server, "Ich habe ein neues Buch gekauft.")


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


def sentences(server: Server) -> list[dict[str, Any]]:
    body = {"texts": [TEXT], "options": {"return_attention": True}}
    found: list[dict[str, Any]] = server.post("/v1/translate", body).json["translations"][0][
        "sentences"
    ]
    return found


def test_a_word_shows_what_it_attends_to(page: Any, server: Server) -> None:
    from selenium.webdriver import ActionChains

    write(page, TEXT)
    first, _, last = sentences(server)
    assert first["text"] == "I bought a new book."
    ActionChains(page).move_to_element(words(page)[4]).perform()
    shaded = wait(lambda: marks(page))
    assert list(shaded) == ["Ich", "habe", "ein", "neues", "Buch", "gekauft."]
    # Of this sentence each word is one token; those of the frame are no words.
    assert list(shaded.values()) == pytest.approx(first["attention"][4][1:-1], abs=1e-3)
    assert max(shaded, key=shaded.__getitem__) == "Buch"
    page.execute_script("arguments[0].focus()", words(page)[-1])
    assert list(marks(page)) == ["Ja"]
    assert len(last["tokens"]) > 1
    press(page, "TAB")
    assert marks(page) == {}


def test_an_alternative_is_chosen_by_click_and_goes_on_from_there(
    page: Any, server: Server
) -> None:
    write(page, TEXT)
    first, second, _ = sentences(server)
    place = len(first["text"].split()) + 1  # the second word of the second sentence
    assert words(page)[place].text == second["text"].split()[1] == "dog"
    words(page)[place].click()
    found = [option.text for option in wait(lambda: options(page))]
    more = {"return_alternatives": True, "num_hypotheses": 5}
    asked = {"texts": ["Der Hund schläft."], "options": {**more, "target_prefix": "The"}}
    hypotheses = server.post("/v1/translate", asked).json["translations"][0]["hypotheses"]
    assert found == [one["text"].removeprefix("The ") for one in hypotheses]
    assert len(found) > 1
    assert marks(page), "what the word attends to is shown while its list is open"

    options(page)[1].click()
    wanted = f"{first['text']} The {found[1]}\n"
    wait(lambda: text_of(page, "translation").startswith(wanted))
    wait(lambda: focused(page) == words(page)[place])
    words(page)[place + 1].click()
    wait(lambda: options(page))
    left = found[1].split()[1:]
    assert " ".join(left) in [option.text for option in options(page)]


def test_it_is_used_by_keys_alone(page: Any, server: Server) -> None:
    assert focused(page).get_attribute("id") == "source"
    for typed in "Der Hund schläft.":
        press(page, typed)
    wait_for_words(page)
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
    assert chosen != expected(server, "Der Hund schläft.")
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
    write(page, f"{'Wort' * 20} " + "Ich habe ein neues Buch gekauft. " * 3)
    tap(page, words(page)[-1])
    wait(lambda: options(page))
    assert marks(page)
    widths = "return [document.documentElement.scrollWidth, window.innerWidth]"
    assert page.execute_script(widths) == [360, 360]
    source, target = page.find_elements("css selector", ".field:not([hidden])")
    assert source.rect["y"] + source.rect["height"] <= target.rect["y"]
    assert source.rect["width"] == target.rect["width"] > 320
    colour = page.execute_script(
        "return getComputedStyle(document.documentElement).backgroundColor"
    )
    levels = [int(level) for level in colour.strip("rgb()").split(",")]
    assert (max(levels) < 64) if scheme == "dark" else (min(levels) > 192)


def test_errors_are_shown_as_text(page: Any) -> None:
    write(page, "Ja")
    assert text_of(page, "translation")
    page.execute_script(
        "const source = document.getElementById('source'); source.value = 'Wort '.repeat(30000);"
        "source.dispatchEvent(new Event('input'))"
    )
    wait(lambda: "more than the 100000 of a request" in text_of(page, "error"))
    assert text_of(page, "translation") == ""  # not that of the text before
    assert page.find_element("id", "error").get_attribute("role") == "alert"
    empty(page)
    write(page, "Ja")
    wait(lambda: text_of(page, "error") == "")
    # Chromium writes the status of every failed request to its console.
    assert all("status of 413" in entry["message"] for entry in page.get_log("browser"))


def test_sentences_too_long_for_the_model_are_translated_in_parts(page: Any) -> None:
    page.execute_script(
        "const source = document.getElementById('source'); source.value = 'Wort '.repeat(600);"
        "source.dispatchEvent(new Event('input'))"
    )
    wait(lambda: text_of(page, "translation") and not text_of(page, "error"))
    wait_for_words(page)
    empty(page)


def test_languages_are_chosen_where_a_model_knows_several(page: Any, server: Server) -> None:
    """The server's list of models is made up, and so is its translation."""
    code = """
      const before = window.fetch;
      window.asked = [];
      window.fetch = (path, { body } = {}) => {
        if (path === "v1/models") return Promise.resolve(Response.json({ models: [{
          name: "many", languages: { source: ["deu_Latn", "fr"], target: ["deu_Latn", "en", "xx!"] }
        }] }));
        if (path === "v1/translate") window.asked.push(JSON.parse(body));
        return new Promise(() => {});
      };
    """
    made = page.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": code})
    try:
        page.get(f"{server.url}/")
        names = [option.text for option in page.find_elements("css selector", ".head option")]
        assert names == ["German (Latin)", "French", "German (Latin)", "English", "xx!"]
        page.find_element("id", "source").send_keys("Ja")
        wait(lambda: page.execute_script("return window.asked.length"))
        page.find_element("id", "source-language").send_keys("French")
        wait(lambda: page.execute_script("return window.asked.length > 1"))
        first, last = page.execute_script("return [asked[0], asked.at(-1)]")
    finally:
        page.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", made)
    languages = {"source_language": "deu_Latn", "target_language": "en"}
    assert first["model"] == "many"
    assert first["options"] == {"return_attention": True, **languages}
    assert last["options"] == {"return_attention": True, **languages, "source_language": "fr"}
    assert page.find_element("id", "source").get_attribute("lang") == "fr"


def test_models_that_give_no_attention_translate_all_the_same(page: Any) -> None:
    page.execute_script("""
      const before = window.fetch;
      window.fetch = (path, options) => {
        if (!options.body?.includes("return_attention")) return before(path, options);
        const error = "return_attention: the model gives none";
        return Promise.resolve(Response.json({ error }, { status: 422 }));
      };
    """)
    page.find_element("id", "source").send_keys("Der Hund schläft. Ja")
    wait(lambda: "sleep" in text_of(page, "translation"))
    pane = page.find_element("id", "translation")
    wait(lambda: pane.get_attribute("aria-busy") == "false")
    assert text_of(page, "error") == ""
