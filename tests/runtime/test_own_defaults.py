"""A bundle's own decoding defaults, under a caller's options."""

import copy
import dataclasses
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.support.manifests import rewrite
from tests.support.paths import REPOSITORY
from tests.support.tiny_rows import rows_of, tokens
from tfexport.cli.main import cli
from tfexport.errors import BundleError, ConfigError
from tfexport.runtime import DecodingOptions, Translator
from tfexport.runtime.options import DEFAULTS, given_options
from tfexport.runtime.resolve import with_own

BEAM: dict[str, Any] = {
    "search_rules": "transformers", "beam_size": 4, "num_hypotheses": 2, "early_stopping": False,
    "exhaustive": True, "renormalize_logits": True, "length_penalty": 2.0, "min_length": 3,
    "max_length": 9, "suppress_tokens": [5], "no_repeat_ngram_size": 2,
}  # fmt: skip
DRAW: dict[str, Any] = {
    "sampling": True,
    "temperature": 0.5,
    "top_k": 5,
    "top_p": 0.9,
    "num_hypotheses": 3,
}
Opened = Callable[..., Translator]


@pytest.fixture(name="opened")
def _opened(tiny_bundle: Path, tmp_path: Path) -> Opened:
    def opened(**generation: Any) -> Translator:
        folder = tmp_path / "own.bundle"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(tiny_bundle, folder)

        def change(values: dict[str, Any]) -> None:
            values.update(generation=generation)
            if generation.keys() & {"suppress_tokens", "first_token", "last_token"}:
                del values["graphs"]["generate"]  # it would keep these rules, made so

        rewrite(folder, change)
        return Translator(folder, threads=1)

    return opened


def test_nothing_given_is_decoded_by_the_bundles_defaults(
    opened: Opened, tiny_bundle: Path
) -> None:
    rows = rows_of(6)
    plain = Translator(tiny_bundle, threads=1)
    said = plain.generate(rows, **BEAM)
    own = opened(**BEAM).generate(rows)
    assert tokens(own) == tokens(said)
    assert all(len(result.hypotheses) == 2 for result in own)
    assert tokens(own) != tokens(plain.generate(rows))


def test_every_call_takes_the_defaults(opened: Opened, tmp_path: Path) -> None:
    translator = opened(suppress_tokens=[*range(3, 12)], max_length=4, beam_size=3)
    texts = ["w5 w6", "w7"]
    results = translator.translate(texts)
    assert not {token for row in tokens(results) for made in row for token in made} & {
        *range(3, 12)
    }
    assert list(translator.translate_iterable(texts)) == results
    (tmp_path / "in.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    translator.translate_file(tmp_path / "in.txt", tmp_path / "out.txt")
    lines = [result.text for result in results]
    assert (tmp_path / "out.txt").read_text(encoding="utf-8").splitlines() == lines
    run = CliRunner().invoke(cli, ["translate", str(translator.path), str(tmp_path / "in.txt")])
    assert run.stdout.splitlines() == lines
    # A beam cannot be streamed, so that of the bundle is left out.
    greedy = translator.translate(texts[:1], beam_size=1)
    assert "".join(translator.stream(texts[0])) == greedy[0].text


def test_the_docs_say_what_a_stream_is_equal_to(opened: Opened) -> None:
    translator = opened(**BEAM)
    texts = [f"w{first} w{second}" for first in range(4, 10) for second in range(4, 10)]
    pieces = ["".join(translator.stream(text)) for text in texts]
    assert pieces == [one.text for one in translator.translate(texts, beam_size=1)]
    assert pieces != [one.text for one in translator.translate(texts)], "the bundle's own beam"
    said = " ".join((translator.stream.__doc__ or "").split())
    assert "the text that ``translate`` returns with ``beam_size=1``" in said
    for page, words in (
        ("decoding", "what `translate` gives with `beam_size=1`"),
        ("serving", 'without `stream` and with `"options": {"beam_size": 1}`'),
    ):
        assert words in (REPOSITORY / "docs" / f"{page}.md").read_text(encoding="utf-8")


def test_scoring_takes_no_part_in_them(opened: Opened, tiny_bundle: Path) -> None:
    translator = opened(**{**BEAM, "length_penalty": 1.0, "max_length": 3, "last_token": 2,
                           "first_token": 7})  # fmt: skip
    plain = Translator(tiny_bundle, threads=1)
    target = [5, 5, 5, 5, 5]
    (ours,) = translator.score([[4, 5, 2]], [target], return_token_scores=True)
    assert ours == plain.score([[4, 5, 2]], [target], return_token_scores=True)[0]
    assert ours.token_scores is not None
    assert len(ours.token_scores) == 6  # the end token's last
    # A text is a target as the model writes it: its forced first token goes before it.
    (text,) = translator.score(["w4"], ["w5"])
    assert text.tokens[0] == 7
    (same,) = translator.score([translator.encode("w4")], [text.tokens])
    assert same.score == pytest.approx(text.score)


@pytest.mark.parametrize(
    ("own", "given", "dropped"),
    [
        (BEAM, {"beam_size": 1}, {"early_stopping", "exhaustive", "renormalize_logits",
                                  "num_hypotheses"}),
        (BEAM, {"sampling": True}, {"beam_size", "early_stopping", "exhaustive",
                                    "renormalize_logits"}),
        (BEAM, {"sampling": True, "num_hypotheses": 1}, {"beam_size", "early_stopping",
                                                         "exhaustive", "renormalize_logits"}),
        (BEAM, {"callback": print}, {"beam_size", "early_stopping", "exhaustive",
                                     "renormalize_logits", "num_hypotheses"}),
        (BEAM, {"search_rules": "tfexport"}, {"exhaustive", "renormalize_logits"}),
        (BEAM, {"patience": 2.0}, {"search_rules", "early_stopping", "exhaustive",
                                   "renormalize_logits"}),
        (BEAM, {"beam_groups": 2}, {"search_rules", "early_stopping", "exhaustive",
                                    "renormalize_logits"}),
        (BEAM, {"coverage_penalty": 0.5}, {"search_rules", "early_stopping", "exhaustive",
                                           "renormalize_logits"}),
        (BEAM, {"early_stopping": True}, {"exhaustive"}),
        (BEAM, {"max_length": 2}, {"min_length"}),
        (BEAM, {"min_length": 12}, {"max_length"}),
        (BEAM, {"num_hypotheses": 1}, set()),
        (BEAM, {"beam_size": 3}, set()),
        (BEAM, {"suppress_tokens": [], "length_penalty": 1.0}, set()),
        (DRAW, {}, set()),
        (DRAW, {"sampling": False}, {"temperature", "top_k", "top_p", "num_hypotheses"}),
        (DRAW, {"beam_size": 4}, {"sampling", "temperature", "top_k", "top_p"}),
        (DRAW, {"beam_size": 2}, {"sampling", "temperature", "top_k", "top_p",
                                  "num_hypotheses"}),
        ({"temperature": 0.5, "top_k": 50}, {}, {"temperature", "top_k"}),
        ({"temperature": 0.5, "top_k": 50}, {"sampling": True}, set()),
        ({"length_penalty": 0.6, "early_stopping": True}, {}, {"early_stopping"}),
    ],
)  # fmt: skip
def test_defaults_that_mean_nothing_any_more_are_left_out(
    opened: Opened, own: dict[str, Any], given: dict[str, Any], dropped: set[str]
) -> None:
    left = {name: value for name, value in own.items() if name not in {*dropped, *given}}
    assert with_own(own, given) == {**left, **given}
    if given.get("min_length", 0) < 10:
        results = opened(**own).generate(rows_of(2), **given)
        assert all(result.hypotheses for result in results)


@pytest.mark.parametrize(
    ("defaults", "given"),
    [
        ({"beam_size": 4, "patience": 2.0}, {"beam_size": 1}),
        ({"beam_size": 4, "coverage_penalty": 0.2}, {"sampling": True}),
        ({"beam_size": 4, "beam_groups": 2, "diversity_penalty": 0.5}, {"beam_size": 1}),
        ({"beam_size": 4, "patience": 2.0}, {"beam_size": 3, "search_rules": "transformers"}),
        ({"sampling": True, "seed": 3, "top_k": 5}, {"sampling": False}),
    ],
)
def test_a_servers_defaults_do_not_contradict_a_request(
    opened: Opened, defaults: dict[str, Any], given: dict[str, Any]
) -> None:
    resolver = opened().engine.resolver.with_defaults(defaults)
    resolved, _ = resolver.resolve(given)
    assert resolved.given == {
        name: value for name, value in given.items() if value != DEFAULTS[name]
    }


def test_a_contradiction_of_the_callers_own_is_still_one(opened: Opened) -> None:
    translator = opened(**BEAM)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"num_hypotheses": 8}, "num_hypotheses 8 exceeds beam_size"),
        ({"beam_size": 1, "exhaustive": True}, "exhaustive needs beam_size"),
        ({"patience": 2.0, "search_rules": "transformers"}, "patience needs search_rules"),
        ({"min_length": 5, "max_length": 4}, "min_length 5 exceeds max_length 4"),
        ({"beam_size": "4"}, "beam_size: '4' is not an integer"),
        ({"num_hypotheses": None}, "num_hypotheses: None is not"),
    ]
    for given, named in cases:
        with pytest.raises(ConfigError, match=named):
            translator.generate(rows_of(1), **given)


@pytest.mark.parametrize(
    ("generation", "message"),
    [
        ({"beam_size": 1025}, "beam_size: 1025 is more than 1024"),
        ({"length_penalty": 99.0}, "length_penalty: 99.0 is not between"),
        ({"repetition_penalty": float("nan")}, "repetition_penalty: nan is not a number"),
        ({"suppress_sequences": [[]]}, "an empty sequence would ban every token"),
        ({"beam_size": 4, "exhaustive": True, "search_rules": "transformers"},
         "exhaustive needs early_stopping=False"),
        ({"beam_size": 4, "search_rules": "tfexport", "renormalize_logits": True,
          "sampling": True}, "beam_size 4 excludes sampling"),
    ],
)  # fmt: skip
def test_defaults_made_by_hand_are_checked_when_a_bundle_is_opened(
    opened: Opened, generation: dict[str, Any], message: str
) -> None:
    with pytest.raises(BundleError, match=message):
        opened(**generation)


def test_a_value_says_what_was_said(opened: Opened) -> None:
    translator = opened(**BEAM)
    rows = rows_of(3)
    greedy = translator.generate(rows, beam_size=1)
    assert translator.generate(rows, options=DecodingOptions(beam_size=1)) == greedy
    assert translator.generate(rows, options=DecodingOptions()) == translator.generate(rows)
    assert tokens(greedy) != tokens(translator.generate(rows, num_hypotheses=1))


def test_a_bundle_that_samples_draws_anew_for_every_call(opened: Opened) -> None:
    resolver = opened(sampling=True, temperature=0.5).engine.resolver
    seeds = {resolver.resolve({})[0].seed for _ in range(3)}
    assert len(seeds) == 3
    assert resolver.resolve({"seed": 7})[0].seed == 7
    assert resolver.resolve({"sampling": False})[0].seed == 0


def test_copies_of_a_value_keep_their_values() -> None:
    said = DecodingOptions(beam_size=1, max_length=7)
    assert given_options(said, {}) == {"beam_size": 1, "max_length": 7}
    assert given_options(said, {}, changed_only=True) == {"max_length": 7}
    for made in (pickle.loads(pickle.dumps(said)), copy.copy(said), dataclasses.replace(said)):
        assert made == said
        assert given_options(made, {}) == {"max_length": 7}
    assert given_options(DecodingOptions(2), {}) == {"beam_size": 2}
    assert vars(said).keys() == DEFAULTS.keys()


def test_the_graph_of_greedy_search_is_for_defaults_that_change_no_token(opened: Opened) -> None:
    translator = opened(search_rules="transformers", early_stopping=False, max_length=9)
    resolved, _ = translator.engine.resolver.resolve({})
    assert resolved.fits_greedy_graph
    for given in ({"repetition_penalty": 1.5}, {"first_token": 5}, {"last_token": 2}):
        assert not translator.engine.resolver.resolve(given)[0].fits_greedy_graph
    # The graph keeps these of the bundle's rules, and no others.
    translator = opened(suppress_tokens=[5, 6], first_token=7, last_token=2)
    assert translator.engine.resolver.resolve({})[0].fits_greedy_graph
    for other in ({"suppress_tokens": [5]}, {"first_token": None}, {"last_token": 3}):
        assert not translator.engine.resolver.resolve(other)[0].fits_greedy_graph


def test_options_on_the_command_line_take_defaults_back(opened: Opened, tmp_path: Path) -> None:
    translator = opened(suppress_tokens=[*range(4, 17)], first_token=7, max_length=3,
                        sampling=True, end_tokens=[18])  # fmt: skip
    (tmp_path / "in.txt").write_text("w5 w6\nw9\n", encoding="utf-8")
    flags = ["--suppress-tokens", "", "--first-token", "", "--end-tokens", "", "--no-sampling"]
    run = CliRunner().invoke(
        cli, ["translate", str(translator.path), str(tmp_path / "in.txt"), *flags]
    )
    plain = translator.translate(
        ["w5 w6", "w9"], suppress_tokens=[], first_token=None, end_tokens=[], sampling=False
    )
    assert run.stdout.splitlines() == [result.text for result in plain]
