"""Models that are told by a token which language they read, and which they are to write."""

import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.support.manifests import rewrite
from tfexport.cli.main import cli
from tfexport.errors import ConfigError, InputError
from tfexport.languages import Languages
from tfexport.runtime import Translator

IDS = {"de": 10, "en": 11, "fr": 12}
NLLB = Languages(IDS, "before", "first", "de", None)
Opened = Callable[..., Translator]


@pytest.fixture(name="opened")
def _opened(tiny_bundle: Path, tmp_path: Path) -> Opened:
    def opened(languages: Languages, **changes: Any) -> Translator:
        folder = tmp_path / "told.bundle"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(tiny_bundle, folder)
        values = {"languages": asdict(languages), **changes}

        def change(manifest: dict[str, Any]) -> None:
            manifest.update(values)
            manifest["config"]["start_id"] = manifest["special_ids"].get("start")

        rewrite(folder, change)
        return Translator(folder, threads=1)

    return opened


@pytest.mark.parametrize(
    ("languages", "before", "after"),
    [
        (NLLB, [10], []),
        (Languages(IDS, "after", "first", "de"), [], [10]),
        (Languages(IDS, None, "source"), [11], []),
        (Languages(IDS, None, "first"), [], []),
        (Languages(IDS, "before", "source", "de"), [10, 11], []),
    ],
)
def test_the_source_is_framed_as_the_bundle_says(
    opened: Opened, tiny_bundle: Path, languages: Languages, before: list[int], after: list[int]
) -> None:
    translator, plain = opened(languages), Translator(tiny_bundle, threads=1)
    own = plain.encode("w5 w6")
    first = 11 if languages.target_place == "first" else None
    (told,) = translator.translate(["w5 w6"], target_language="en", return_attention=True)
    (same,) = plain.generate([[*before, *own, *after]], first_token=first, return_attention=True)
    assert told.source_tokens == [*before, *own, *after]
    assert told.hypotheses[0].tokens == same.hypotheses[0].tokens
    assert told.hypotheses[0].score == pytest.approx(same.hypotheses[0].score)
    # Positions of an alignment count the text's own tokens.
    assert told.framing[0] == len(before) + plain.engine.texts.num_special_tokens()[0]
    assert {source for source, _ in told.alignment()} <= {0, 1}


def test_a_forced_first_token_is_a_token_and_no_text(opened: Opened) -> None:
    translator = opened(NLLB)
    (made,) = translator.translate(["w5 w6"], target_language="fr", return_token_scores=True)
    best = made.hypotheses[0]
    assert best.tokens[0] == 12
    assert best.token_scores is not None
    assert best.token_scores[0] == 0
    assert made.text == translator.decode(best.tokens[1:])
    assert "w12" not in made.text
    assert "".join(translator.stream("w5 w6", target_language="fr")) == made.text
    (found,) = translator.translate_iterable(["w5 w6"], target_language="fr")
    assert found.hypotheses[0].tokens == best.tokens


def test_a_prefix_goes_behind_the_first_token(opened: Opened) -> None:
    translator = opened(NLLB)
    for prefix in ("w7 w8", [7, 8], [12, 7, 8]):
        (made,) = translator.translate(["w5"], target_language="fr", target_prefix=[prefix])
        assert made.hypotheses[0].tokens[:3] == [12, 7, 8]
    with pytest.raises(InputError, match="forced first token its 3 tokens exceed max_len"):
        translator.translate(["w5"], target_language="fr", target_prefix=[[7, 8]], max_length=2)


def test_the_start_token_may_be_the_language(opened: Opened, tiny_bundle: Path) -> None:
    translator = opened(Languages(IDS, "after", "start", "de", "en"))
    (told,) = translator.translate(["w5 w6"], max_length=6)
    resolved, _ = translator.engine.resolver.resolve({})
    assert resolved.bos_id == 11
    assert not resolved.fits_greedy_graph  # which starts otherwise
    (other,) = translator.translate(["w5 w6"], target_language="fr", max_length=6)
    assert told.hypotheses[0] != other.hypotheses[0]
    plain = Translator(tiny_bundle, threads=1).generate([told.source_tokens], max_length=6)
    assert plain[0].hypotheses[0] != told.hypotheses[0]
    found = told.hypotheses[0].tokens
    (scored,) = translator.score(["w5 w6"], [found], return_token_scores=True)
    (sure,) = translator.translate(["w5 w6"], max_length=6, return_token_scores=True)
    assert scored.token_scores is not None
    assert scored.token_scores[: len(found)] == pytest.approx(sure.hypotheses[0].token_scores)


def test_a_start_token_or_a_first_token_of_the_bundles_own_is_a_language(opened: Opened) -> None:
    ids = {"pad": 0, "bos": 1, "eos": 2, "unk": 3}
    starts = opened(Languages(IDS, None, "start"), special_ids={**ids, "start": 12})
    assert starts.engine.resolver.resolve({})[0].bos_id == 12
    first = opened(Languages(IDS, None, "first"), generation={"first_token": 12})
    (made,) = first.translate(["w5"], beam_size=2)
    assert made.hypotheses[0].tokens[0] == 12
    (made,) = first.translate(["w5"], target_language="en", beam_size=2)
    assert made.hypotheses[0].tokens[0] == 11
    # A caller's first token is a language too, as an id or as the vocabulary writes it.
    unset = opened(Languages(IDS, None, "first")).engine.resolver
    for token in (12, "w12"):
        assert unset.resolve({"first_token": token})[0].first_token == 12
    with pytest.raises(ConfigError):
        unset.resolve({})


def test_a_text_may_hold_its_mark_itself(opened: Opened) -> None:
    translator = opened(Languages({f"w{i}": i for i in (10, 11, 12)}, None, "source"))
    (asked,) = translator.translate(["w5"], target_language="w11")
    (held,) = translator.translate(["w11 w5"])
    assert held.source_tokens == asked.source_tokens
    assert held.framing == asked.framing
    (both,) = translator.translate(["w12 w5"], target_language="w11")
    assert both.source_tokens == translator.encode("w12 w5")
    with pytest.raises(InputError, match=r"target language: target_language is one of w10, w11"):
        translator.translate(["w5"])


def test_lengths_count_the_tokens_of_languages(opened: Opened) -> None:
    translator = opened(NLLB)
    plain = len(translator.texts.encode("w5 w6 w7"))
    with pytest.raises(InputError, match=f"{plain + 1} tokens exceed the model's limit of {plain}"):
        translator.translate(["w5 w6 w7"], target_language="fr", max_input_length=plain)
    (cut,) = translator.translate(
        ["w5 w6 w7"], target_language="fr", max_input_length=plain, truncate=True
    )
    assert len(cut.source_tokens) == plain
    assert cut.source_tokens[0] == 10
    (short,) = translator.translate(["w5"], target_language="fr", max_length=1)
    assert short.hypotheses[0].tokens == [12]


@pytest.mark.parametrize(
    ("languages", "given", "message"),
    [
        (NLLB, {}, "target_language: the model needs a target language"),
        (NLLB, {}, "is one of de, en, fr"),
        (NLLB, {"target_language": "xx"}, "'xx' is not a language of the model; known: de, en"),
        (NLLB, {"target_language": "EN"}, "'EN' is not a language of the model"),
        (NLLB, {"target_language": 3}, "3 is not a language code"),
        (NLLB, {"source_language": "es", "target_language": "en"}, "source_language: 'es' is not"),
        (Languages(IDS, None, "first"), {"source_language": "de", "target_language": "en"},
         "source_language: 'de' .*one source and one target language"),
        (Languages(source="de", target="en"), {"source_language": "fr"},
         "source_language: 'fr' is not 'de', the model's only one"),
    ],
)  # fmt: skip
def test_languages_that_are_wrong_are_named(
    opened: Opened, languages: Languages, given: dict[str, Any], message: str
) -> None:
    translator = opened(languages)
    for call in (translator.translate, translator.translate_iterable):
        with pytest.raises(ConfigError, match=message):
            call(["w5"], **given)
    with pytest.raises(ConfigError, match=message):
        translator.stream("w5", **given)
    with pytest.raises(ConfigError, match=message):
        translator.score(["w5"], ["w6"], **given)


def test_the_only_language_of_a_model_may_be_named(opened: Opened) -> None:
    translator = opened(Languages(source="de", target="en"))
    named = translator.translate(["w5"], source_language="de", target_language="en")
    assert named == translator.translate(["w5"])


def test_a_bundle_without_languages_takes_none(tiny_bundle: Path) -> None:
    translator = Translator(tiny_bundle, threads=1)
    with pytest.raises(ConfigError, match="target_language: 'en'"):
        translator.translate(["w5"], target_language="en")


def test_rows_of_ids_hold_the_source_language_themselves(opened: Opened) -> None:
    translator = opened(NLLB)
    (free,) = translator.generate([[10, 5, 2]])
    (told,) = translator.generate([[10, 5, 2]], target_language="fr")
    assert told.source_tokens == free.source_tokens == [10, 5, 2]
    assert told.hypotheses[0].tokens[0] == 12
    marian = opened(Languages(IDS, None, "source"))
    marian.generate([[11, 5, 2]])
    with pytest.raises(ConfigError, match=r"target_language: .* ids"):
        marian.generate([[11, 5, 2]], target_language="en")


def test_a_text_is_scored_as_the_model_writes_it(opened: Opened) -> None:
    translator = opened(NLLB)
    (scored,) = translator.score(["w5"], ["w6 w7"], target_language="fr")
    assert scored.tokens == [12, 6, 7]
    source = translator.translate(["w5"], target_language="fr")[0].source_tokens
    (ids,) = translator.score([source], [[12, 6, 7]])
    assert scored == ids


def test_languages_on_the_command_line(opened: Opened, tmp_path: Path) -> None:
    translator = opened(NLLB)
    lines, out = tmp_path / "in.txt", tmp_path / "out.txt"
    lines.write_text("w5 w6\n\nw7\n", encoding="utf-8")

    def run(*arguments: str) -> Any:
        return CliRunner().invoke(cli, [*arguments])

    bundle = str(translator.path)
    refused = run("translate", bundle, str(lines))
    assert refused.exit_code
    assert "--target-language is one of de, en, fr" in refused.output
    short = ("--max-length", "9")
    told = ("--source-language", "fr", "--target-language", "en")
    assert run("translate", bundle, str(lines), "-o", str(out), *short, *told).exit_code == 0
    texts = translator.translate(
        ["w5 w6", "", "w7"], source_language="fr", target_language="en", max_length=9
    )
    assert out.read_text(encoding="utf-8").splitlines() == [made.text for made in texts]
    scored = run("score", bundle, str(lines), str(out), *told)
    assert scored.exit_code == 0, scored.output
    assert "before the text (de by default)" in run("inspect", bundle).output
    assert "as the first target token; de, en, fr" in run("inspect", bundle).output
