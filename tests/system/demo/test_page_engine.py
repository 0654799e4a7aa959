"""The engine in WebAssembly in a page: threads, ending a call, and what a page may not do."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.browser import open_example, wait_for_status
from tests.support.paths import REPOSITORY

pytestmark = pytest.mark.slow
BUNDLE = REPOSITORY / "examples" / "de-en.bundle"
SENTENCES = 40
# Runs in a page with the package; `body` is a function of it that is given the sentences.
CALL = """
    const [texts, done] = arguments;
    (async () => {
      const { Translator } = await import("tfexport");
      %s
    })().then(done, (error) => done(`${error.name}: ${error.message}`));
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("isolated") / "web"
    with open_example(folder, BUNDLE, "tfexport") as browser:
        wait_for_status(browser, "Ready")
        yield browser


@pytest.fixture(scope="module")
def texts() -> list[str]:
    lines = (REPOSITORY / "examples" / "de-en" / "test.tsv").read_text(encoding="utf-8")
    return [line.partition("\t")[0] for line in lines.splitlines()[:SENTENCES]]


def run(page: Any, body: str, texts: list[str]) -> Any:
    return page.execute_async_script(CALL % body, texts)


def test_threads_give_what_one_thread_gives(page: Any, texts: list[str]) -> None:
    found = run(page, """
        const found = [];
        for (const threads of [1, 2]) {
          const translator = await Translator.load("model.bundle", { threads });
          const greedy = await translator.translate(texts);
          const beam = await translator.translate(texts, { beamSize: 4, numHypotheses: 2 });
          const one = await translator.translate(texts[0]);
          found.push([translator.threads, greedy, beam, one]);
          translator.close();
        }
        return found;
    """, texts)  # fmt: skip
    assert isinstance(found, list), found
    (one, *alone), (two, *together) = found
    assert (one, two) == (1, 2)
    assert alone == together
    assert alone[0][0] == alone[2]
    assert len({row["text"] for row in alone[0]}) > SENTENCES / 2
    assert [len(row["hypotheses"]) for row in alone[1]] == [2] * SENTENCES


@pytest.mark.parametrize("threads", [1, 2])
def test_a_call_can_be_ended(page: Any, texts: list[str], threads: int) -> None:
    found = run(page, """
        const translator = await Translator.load("model.bundle", { threads: THREADS });
        const expected = (await translator.translate(texts)).map(({ text }) => text);
        const many = Array(200).fill(texts).flat();
        const controller = new AbortController();
        const ended = translator
          .translate(many, { beamSize: 8, batchSize: 512, signal: controller.signal })
          .then(() => "done", (error) => error.name);
        await new Promise((wait) => setTimeout(wait, 100));
        controller.abort();
        const said = await ended;
        const next = (await translator.translate(texts)).map(({ text }) => text);
        const past = await translator
          .translate(texts, { signal: controller.signal }).catch((error) => error.name);
        translator.close();
        const closed = await translator.translate(texts).catch((error) => error.message);
        return { said, same: JSON.stringify(next) === JSON.stringify(expected), past, closed };
    """.replace("THREADS", str(threads)), texts)  # fmt: skip
    assert found == {
        "said": "AbortError", "same": True, "past": "AbortError",
        "closed": "the translator is closed",
    }  # fmt: skip


def test_loading_can_be_ended(page: Any, texts: list[str]) -> None:
    found = run(page, """
        const controller = new AbortController();
        const onProgress = () => controller.abort();
        await Translator.load("model.bundle", { signal: controller.signal, onProgress });
    """, texts)  # fmt: skip
    assert found.startswith("AbortError")


def test_a_bundle_that_is_not_there_is_named(page: Any, texts: list[str]) -> None:
    found = run(page, """await Translator.load("other.bundle");""", texts)
    assert found.startswith("BundleError")
    assert "other.bundle/manifest.json: status 404" in found


def test_a_page_that_is_not_isolated_has_one_thread(texts: list[str], tmp_path: Any) -> None:
    with open_example(tmp_path / "web", BUNDLE, "tfexport", isolated=False) as page:
        wait_for_status(page, "Ready")
        found = run(page, """
            const translator = await Translator.load("model.bundle");
            return [translator.threads, (await translator.translate(texts[0])).text];
        """, texts)  # fmt: skip
        assert found[0] == 1
        assert found[1]
        refused = run(page, """await Translator.load("model.bundle", { threads: 2 });""", texts)
        assert "not cross-origin isolated" in refused
        assert "Cross-Origin-Opener-Policy" in refused
