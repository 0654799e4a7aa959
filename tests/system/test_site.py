"""The site that ``make docs`` builds and tests: links, and pages in a browser, on a phone too."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import click
import pytest

from tests.conftest import Once
from tests.support.browser import open_folder
from tests.support.combinations import few_of
from tests.support.command import COMMANDS
from tests.support.paths import REPOSITORY

WebDriverWait = pytest.importorskip("selenium.webdriver.support.ui").WebDriverWait
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("furo") is None, reason="needs make .venv/docs"),
]
PHONE, DESK = 360, 1280
# What a user would type, and the place that has to be among the first three results.
QUESTIONS = {
    "number of threads": "questions.html",
    "model refused": "questions.html#why-is-my-model-refused",
    "placeholders untranslated": "questions.html",
    "GPU": "questions.html",
    "smaller model": "questions.html",
    "resume after a crash": "questions.html",
    "target language": "reference/command-line.html#cmdoption-tfexport-translate-target-language",
    "several translations": "questions.html",
    "translation cut off": "questions.html#why-is-my-translation-cut-off",
    "telemetry": "questions.html",
    "from CTranslate2": "coming-from.html",
    "int8": "quantization.html",
    "whisper": "transcription.html",
    "speech": "transcription.html",
    "--beam-size": "reference/command-line.html#cmdoption-tfexport-translate-beam-size",
}
# Whole sentences, whose answer among the questions has to be the first result.
SENTENCES = [
    "how do I set the number of threads",
    "why is my model refused",
    "how do I keep placeholders untranslated",
    "how do I get attention weights",
    "what does int8 cost in quality",
    "how do I run behind nginx",
    "how do I translate a folder of Parquet files",
    "how do I use a fairseq checkpoint",
    "how do I stop repeated n-grams",
    "can I run it in a browser",
]
# Words of cells that begin on one line and end on another.
SPLIT_WORDS = """
const split = [];
for (const cell of document.querySelectorAll("td, th")) {
  const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
  while (texts.nextNode())
    for (const word of texts.currentNode.data.matchAll(/\\p{Letter}{4,}/gu)) {
      const range = document.createRange();
      range.setStart(texts.currentNode, word.index);
      range.setEnd(texts.currentNode, word.index + word[0].length);
      const tops = new Set([...range.getClientRects()].map((rect) => rect.top));
      if (tops.size > 1) split.push(word[0]);
    }
}
return split;
"""


@pytest.fixture(scope="module")
def site(once: Once) -> Path:
    """The site that ``make docs`` has built, or one that is built as it does."""
    if built := os.environ.get("TFEXPORT_TESTS_SITE"):
        return Path(built)

    def build(path: Path) -> None:
        command = [sys.executable, "-m", "sphinx", "-E", "-W", "--keep-going", "-q"]
        done = subprocess.run(
            [*command, "-c", "docs/_site", "docs", path], cwd=REPOSITORY, capture_output=True,
            text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "sphinx -E -W --keep-going -q -c docs/_site docs" in makefile

    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    return once("site", build)


@pytest.fixture(scope="module")
def browser(site: Path) -> Iterator[Any]:
    with open_folder(site, "index.html") as browser:
        browser.home = browser.current_url.removesuffix("index.html")
        yield browser


def pages(site: Path) -> list[str]:
    return sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))


def set_width(browser: Any, width: int) -> None:
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width == PHONE}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


class Links(HTMLParser):
    """Anchors and targets of links of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors, self.targets = set[str](), set[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.anchors |= {values[name] or "" for name in ("id", "name") if name in values}
        for name in ("href", "src"):
            if tag in ("a", "img", "link", "script") and values.get(name):
                self.targets.add(unquote(values[name] or ""))


def test_every_link_within_the_site_leads_somewhere(site: Path) -> None:
    read = {page: Links((site / page).read_text(encoding="utf-8")) for page in pages(site)}
    assert len(read) > 60
    broken = []
    for page, links in read.items():
        for target in links.targets:
            if target.startswith(("http:", "https:", "mailto:", "data:")):
                continue
            path, _, anchor = target.partition("#")
            path = path.partition("?")[0]
            file = (site / page).parent / path if path else site / page
            if file.is_dir():
                file = file / "index.html"
            known = read.get(file.resolve().relative_to(site.resolve()).as_posix())
            if not file.exists() or (anchor and known and anchor not in known.anchors):
                broken.append(f"{page}: {target}")
    assert broken == []


def test_markdown_beside_the_pages_is_shown_as_text(site: Path) -> None:
    for name in ("README", "CONTRIBUTING", "SECURITY", "examples/README", "native/README"):
        text = (site / "repository" / f"{name}.md.html").read_text(encoding="utf-8")
        assert "\n## " not in text
        assert "| --- " not in text
        assert "<h2 id=" in text or name == "CONTRIBUTING"
    readme = Links((site / "repository/README.md.html").read_text(encoding="utf-8"))
    assert {"../quick-start.html", "../development.html#set-up"} <= readme.targets
    assert "speed" in readme.anchors
    performance = Links((site / "performance.html").read_text(encoding="utf-8"))
    assert "repository/README.md.html#speed" in performance.targets
    quick_start = Links((site / "quick-start.html").read_text(encoding="utf-8"))
    assert "_images/web.png" in quick_start.targets


@pytest.mark.exhaustive
def test_no_page_is_wider_than_a_phone(site: Path, browser: Any) -> None:
    set_width(browser, PHONE)
    width = "return document.documentElement.scrollWidth"
    wide = []
    for page in pages(site):
        browser.get(browser.home + page)
        if browser.execute_script(width) > PHONE:
            wide.append(page)
    assert wide == []


@pytest.mark.parametrize("page", ["index", "performance", "coming-from", "serving"])
def test_tables_do_not_split_words(browser: Any, page: str) -> None:
    set_width(browser, DESK)
    browser.get(f"{browser.home}{page}.html")
    assert browser.execute_script("return document.querySelectorAll('td').length") > 10
    assert browser.execute_script(SPLIT_WORDS) == []


def test_the_menu_shows_the_current_entry(browser: Any) -> None:
    set_width(browser, DESK)
    browser.get(browser.home + "development.html")
    entry = browser.find_element("css selector", ".sidebar-tree .current-page")
    assert 0 < entry.rect["y"] < 800


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_navigation_leads_to_every_page(site: Path, browser: Any, width: int) -> None:
    set_width(browser, width)
    browser.get(browser.home + "index.html")
    if width == PHONE:
        assert not browser.find_element("css selector", ".sidebar-tree").is_displayed()
        browser.find_element("css selector", "header label[for=__navigation]").click()
    link = browser.find_element("css selector", ".sidebar-tree a[href='guides/http.html']")
    # The menu slides in.
    WebDriverWait(browser, 10).until(lambda browser: link.is_displayed())
    browser.execute_script("arguments[0].click()", link)
    assert browser.find_element("tag name", "h1").text.startswith("Decode over HTTP")
    tree = browser.find_elements("css selector", ".sidebar-tree a")
    linked = {a.get_attribute("href").partition("#")[0].removeprefix(browser.home) for a in tree}
    written = {
        path.relative_to(REPOSITORY / "docs").with_suffix(".html").as_posix()
        for path in (REPOSITORY / "docs").rglob("*.md")
    }
    assert written - linked == {"index.html"}


def search(browser: Any, question: str) -> list[str]:
    """The pages and anchors that a search finds, best first."""
    set_width(browser, DESK)
    browser.get(browser.home + "index.html")
    field = browser.find_element("css selector", "input[name=q]")
    field.send_keys(question)
    field.submit()
    ended = "return /found/.test(document.querySelector('.search-summary')?.textContent)"
    WebDriverWait(browser, 30).until(lambda browser: browser.execute_script(ended))
    results = browser.find_elements("css selector", "ul.search li > a")
    return [result.get_attribute("href").removeprefix(browser.home) for result in results]


@pytest.mark.parametrize("question", few_of(QUESTIONS, "model refused", "--beam-size", "whisper"))
def test_search_answers_in_one_step(browser: Any, question: str) -> None:
    assert QUESTIONS[question] in search(browser, question)[:3]


@pytest.mark.parametrize("sentence", few_of(SENTENCES, "why is my model refused"))
def test_search_answers_whole_sentences_first(browser: Any, sentence: str) -> None:
    answer = sentence.lower().replace(" ", "-")
    assert search(browser, sentence)[0] == f"questions.html#{answer}"


def test_letters_that_stand_alone_are_not_searched_for(browser: Any) -> None:
    assert 0 < len(search(browser, "n-gram")) < 30


def test_search_finds_every_option(browser: Any) -> None:
    browser.get(browser.home + "search.html?q=option")
    query = (
        "const [query, ...rest] = Search._parseQuery(arguments[0]);"
        "return Search._performSearch(query, ...rest).map(found => found[0] + found[2]);"
    )
    missed = []
    for verb, command in COMMANDS.items():
        for parameter in command.params:
            for name in [*parameter.opts, *parameter.secondary_opts]:
                if not isinstance(parameter, click.Option) or not name.startswith("--"):
                    continue
                place = f"reference/command-line#cmdoption-tfexport-{verb}-"
                if not any(
                    found.startswith(place) for found in browser.execute_script(query, name)
                ):
                    missed.append(f"{verb} {name}")
    assert missed == []
