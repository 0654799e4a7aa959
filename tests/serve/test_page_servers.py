"""The page of servers that ask for a key, have several models, or end."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serve.pages import focused, key, text_of, wait, write
from tests.serve.servers import serving
from tests.support.browser import open_address

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", name="page")
def _page() -> Iterator[Any]:
    """A browser; each server has an address of its own, of which nothing is kept."""
    with open_address("about:blank") as browser:
        yield browser


def test_a_server_that_is_gone_is_an_error_too(
    page: Any, tiny_bundle: Path, tmp_path: Path
) -> None:
    with serving(tmp_path, tiny_bundle) as server:
        page.get(f"{server.url}/")
        write(page, "w4")
        server.end()
        page.find_element("id", "source").send_keys(" w5")
        wait(lambda: text_of(page, "error") == "The server cannot be reached.")


def test_a_key_is_asked_for_if_the_server_wants_one(
    page: Any, tiny_bundle: Path, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.txt"
    keys.write_text("sesame\n")
    with serving(tmp_path, tiny_bundle, "--api-key-file", keys) as server:
        page.get(f"{server.url}/")
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


def test_models_are_chosen_where_there_are_several(
    page: Any, tiny_bundle: Path, tmp_path: Path
) -> None:
    for name in ("de-en", "fr-en"):
        (tmp_path / f"{name}.bundle").symlink_to(tiny_bundle)
    bundles = [tmp_path / "de-en.bundle", tmp_path / "fr-en.bundle"]
    with serving(tmp_path, *bundles) as server:
        page.get(f"{server.url}/")
        choice = page.find_element("id", "model")
        wait(choice.is_displayed)
        assert choice.text.split() == ["de-en", "fr-en"]
        write(page, "w4 w5")
        choice.send_keys("fr")
        wait(lambda: page.find_element("id", "source-name").text == "French")
        assert page.find_element("id", "source").get_attribute("lang") == "fr"
        wait(lambda: server.figure("tfexport_requests_total", model="fr-en") >= 2)
