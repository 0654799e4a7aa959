"""Which model serves a request, and which languages it is told."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serve.servers import Server, serving
from tfexport.languages import Languages
from tfexport.runtime.text.language_codes import ModelLanguages


@pytest.fixture(scope="module", name="several")
def _several(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Models of which only names say the languages, or nothing."""
    folder = tmp_path_factory.mktemp("several")
    names = ["any.bundle", "de-en.bundle", "fr-en", "other.bundle"]
    bundles = [shutil.copytree(tiny_bundle, folder / name) for name in names]
    with serving(folder, *bundles, "--languages", "other=de-it") as running:
        yield running


def own(server: Server, **more: Any) -> Any:
    return server.post("/v1/translate", {"texts": ["w4"], **more}).json


def test_models_are_named_as_their_folders(several: Server) -> None:
    listed = several.ask("GET", "/v1/models").json["models"]
    assert [(one["name"], one["languages"]) for one in listed] == [
        ("any", {"source": ["und"], "target": ["und"]}),
        ("de-en", {"source": ["de"], "target": ["en"]}),
        ("fr-en", {"source": ["fr"], "target": ["en"]}),
        ("other", {"source": ["de"], "target": ["it"]}),
    ]


def test_one_of_several_has_to_be_named(several: Server) -> None:
    assert own(several)["error"] == "model: choose one of any, de-en, fr-en, other"
    for name in ("any", "de-en", "other"):
        assert own(several, model=name)["model"] == name


@pytest.mark.parametrize(
    ("source", "target", "model"),
    [("de", "en", "de-en"), ("FR", "en-GB", "fr-en"), ("de", "it", "other"), ("ja", "ko", "any"),
     (None, "it", "other")],
)  # fmt: skip
def test_languages_choose_the_model(
    several: Server, source: str | None, target: str, model: str
) -> None:
    options = {"source_language": source, "target_language": target}
    assert own(several, options=options)["model"] == model
    path, labels = "/v2/translate", {"route": "/v2/translate", "model": model}
    before = several.figure("tfexport_requests_total", **labels)
    body = {"text": ["w4"], "target_lang": target}
    answer = several.post(path, body if source is None else {**body, "source_lang": source})
    assert answer.status == 200
    several.wait_idle()  # a request is counted when its answer is on its way
    assert several.figure("tfexport_requests_total", **labels) == before + 1


def test_a_source_that_may_be_several_has_to_be_said(several: Server) -> None:
    answer = several.post("/translate", {"q": "w4", "source": "auto", "target": "en"})
    assert answer.status == 400
    assert "its language was not detected; give one of de, fr" in answer.json["error"]


def test_all_languages_are_listed(several: Server) -> None:
    found = {one["code"]: one["targets"] for one in several.ask("GET", "/languages").json}
    assert found == {"und": ["und"], "de": ["en", "it"], "fr": ["en"], "en": [], "it": []}


def test_a_named_model_knows_its_languages(several: Server) -> None:
    said = own(several, model="de-en", options={"source_language": "fr"})["error"]
    assert said == ("source_language: 'fr' is not a language of the model 'de-en'; known: de")


MANY = Languages({"de_DE": 4, "en_XX": 5, "pt_BR": 6, "pt_PT": 7}, "before", "first", None, "en_XX")


def test_codes_match_regardless_of_case_and_region() -> None:
    languages = ModelLanguages.of("m", MANY, None)
    assert languages.source("DE") == "de_DE"
    assert languages.source("pt-pt") == "pt_PT"
    assert languages.target("pt-AO") == "pt_BR"
    assert languages.target("fr") is None


def test_models_are_told_what_they_want_to_be_told() -> None:
    language_pair = ModelLanguages.of("m", MANY, "de-en").language_pair("de", "en")
    assert (language_pair.source, language_pair.target) == ("de_DE", "en_XX")
    only = Languages({}, None, None, "de", "en")
    languages = ModelLanguages.of("xx-yy", only, None)
    assert (languages.sources, languages.targets) == (("de",), ("en",))
    language_pair = languages.language_pair("de", "en")
    assert (language_pair.source, language_pair.target) == (None, None)


@pytest.mark.parametrize(
    ("name", "pair", "known"),
    [("de-en", None, True), ("DE-EN", None, True), ("model", "de-en", True), ("model", None, False),
     ("de-en-big", None, False), ("deutsch-en", None, False)],
)  # fmt: skip
def test_names_and_operators_say_pairs(name: str, pair: str | None, known: bool) -> None:
    languages = ModelLanguages.of(name, None, pair)
    assert languages.unknown is not known
    if known:
        assert (languages.sources, languages.targets) == (("de",), ("en",))
