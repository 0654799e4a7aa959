"""Codes of languages: those of models, protocols and libraries are the same languages."""

import pytest

from tfexport.languages import Languages
from tfexport.runtime.text.language_codes import (
    Code,
    ModelLanguages,
    language_name,
    listed_codes,
    match_code,
)
from tfexport.serve.protocols.deepl import source_code, target_codes

pytestmark = pytest.mark.no_model


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("de", "de"), ("deu", "de"), ("ger", "de"), ("DE-at", "de-AT"), ("deu_Latn", "de-Latn"),
        ("en_XX", "en"), ("zho_Hans", "zh-Hans"), ("zh-CN", "zh-Hans-CN"), ("ZH_tw", "zh-Hant-TW"),
        ("zt", "zh-Hant"), ("pb", "pt-BR"), ("iw", "he"), ("nob", "nb"), ("no", "nb"),
        (">>fra<<", "fr"), (">>cmn_Hans<<", "zh-Hans"), ("__fr__", "fr"), ("<2fr>", "fr"),
        ("por_Latn", "pt-Latn"), ("arb_Arab", "ar-Arab"), ("quz", "quz"), ("es-419", "es-419"),
    ],
)  # fmt: skip
def test_codes_are_read_in_their_parts(text: str, code: str) -> None:
    assert str(Code.of(text)) == code


NLLB = ["eng_Latn", "zho_Hant", "zho_Hans", "srp_Cyrl", "por_Latn", "arb_Arab", "ace_Latn"]


@pytest.mark.parametrize(
    ("asked", "known"),
    [
        ("en", "eng_Latn"), ("EN-US", "eng_Latn"), ("zh", "zho_Hans"), ("ZH-HANT", "zho_Hant"),
        ("zh-TW", "zho_Hant"), ("zt", "zho_Hant"), ("pt-BR", "por_Latn"), ("ar", "arb_Arab"),
        ("sr", "srp_Cyrl"), ("sr-Latn", None), ("ace", "ace_Latn"), ("fr", None), ("", None),
        ("zho_Hant", "zho_Hant"),
    ],
)  # fmt: skip
def test_codes_of_callers_are_those_of_a_model(asked: str, known: str | None) -> None:
    assert match_code(asked, NLLB) == known


def test_a_region_is_preferred_where_it_is_known() -> None:
    known = ["en_XX", "pt_XX", "pt_PT"]
    assert [match_code(code, known) for code in ("pt", "pt-PT", "pt-BR")] == [
        "pt_XX", "pt_PT", "pt_XX",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "known", [NLLB, ["pt_BR", "pt_PT"], ["srp_Cyrl", "srp_Latn"], ["de", "en"], ["fra", "zlw"]]
)
def test_listed_codes_are_found_again(known: list[str]) -> None:
    listed = listed_codes(known)
    assert sorted(listed.values()) == sorted(known)
    assert all(match_code(short, known) == own for short, own in listed.items())


def test_listed_codes_are_short() -> None:
    assert [*listed_codes(NLLB)] == ["en", "zh-Hant", "zh-Hans", "sr", "pt", "ar", "ace"]
    assert [*listed_codes(["pt_BR", "pt_PT"])] == ["pt-BR", "pt-PT"]


@pytest.mark.parametrize(
    ("code", "name"),
    [("deu_Latn", "German"), ("zho_Hant", "Chinese (traditional)"), ("quz", "quz"),
     ("en_XX", "English"), ("und", "Undetermined")],
)  # fmt: skip
def test_languages_have_names(code: str, name: str) -> None:
    assert language_name(code) == name


@pytest.mark.parametrize(
    ("code", "targets"),
    [("en", ["EN-GB", "EN-US"]), ("eng_Latn", ["EN-GB", "EN-US"]), ("pt_BR", ["PT-BR"]),
     ("pt", ["PT-BR", "PT-PT"]), ("zh", ["ZH-HANS"]), ("zho_Hant", ["ZH-HANT"]), ("no", ["NB"]),
     ("de_DE", ["DE"]), ("deu_Latn", ["DE"])],
)  # fmt: skip
def test_deepl_gets_codes_that_its_client_takes(code: str, targets: list[str]) -> None:
    assert target_codes(code) == targets
    assert all(match_code(target, [code]) == code for target in targets)
    assert "-" not in source_code(code)


MANY = Languages(dict.fromkeys(NLLB, 4), "before", "first", "eng_Latn", None)


def test_an_operator_leaves_some_languages_of_a_model() -> None:
    languages = ModelLanguages.of("m", MANY, "en,zh_Hans-sr")
    assert languages.sources == ("eng_Latn", "zho_Hans")
    assert languages.targets == ("srp_Cyrl",)
    language_pair = languages.language_pair(
        None, None
    )  # the only one is told, and the default stays
    assert (language_pair.source, language_pair.target) == (None, "srp_Cyrl")


def test_an_operator_cannot_give_a_model_languages() -> None:
    with pytest.raises(ValueError, match="m: fr is no language of its bundle; known: ace_Latn"):
        ModelLanguages.of("m", MANY, "en-fr")
