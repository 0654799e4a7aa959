"""Every decoding option does something, or is refused, on every way of decoding."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tfexport.cli.main import cli
from tfexport.errors import ConfigError, InputError
from tfexport.runtime import Translator
from tfexport.runtime.engine import Engine
from tfexport.runtime.options import DecodingOptions
from tfexport.runtime.search.request import (
    BEAM_RULES_OPTIONS,
    GREEDY_GRAPH_OPTIONS,
    ResolvedOptions,
)

ROWS = [[4, 5, 6, 2], [12, 8, 4, 16, 2], [7, 2], [9, 9, 10, 2], [15, 11, 13, 14, 5, 2], [6, 2]]
ONLY_UNKNOWN = [i for i in range(17) if i not in (2, 3)]
PATHS: dict[str, dict[str, Any]] = {
    "greedy in one call": {},
    "greedy": {"return_token_scores": True},
    "beam in one call": {"beam_size": 4, "num_hypotheses": 2},
    "beam": {"beam_size": 4, "num_hypotheses": 2, "return_attention": True},
    "sampling": {"sampling": True, "seed": 1, "num_hypotheses": 2},
    "alternatives": {"return_alternatives": True, "num_hypotheses": 2},
}


@dataclass(frozen=True)
class Change:
    """One option.

    Attributes:
        value: unlike its default.
        beside: options without which it has nothing to act on; both runs have them.
    """

    value: Any
    beside: dict[str, Any] = field(default_factory=dict)


CHANGES = {
    "beam_size": Change(6),
    "num_hypotheses": Change(3),
    "length_penalty": Change(0.0),
    "coverage_penalty": Change(3.0),
    "patience": Change(0.25),
    "early_stopping": Change(False, {"length_penalty": 3.0}),
    # The start token is one of the tokens so far there.
    "search_rules": Change("transformers", {"no_repeat_ngram_size": 1}),
    "exhaustive": Change(
        True,
        {"search_rules": "transformers", "early_stopping": False, "length_penalty": 3.0},
    ),
    "renormalize_logits": Change(True, {"search_rules": "transformers", "no_repeat_ngram_size": 1}),
    "beam_groups": Change(2),
    "diversity_penalty": Change(9.0, {"beam_groups": 2}),
    "sampling": Change(True, {"num_hypotheses": 1}),
    "temperature": Change(9.0),
    "top_k": Change(1),
    "top_p": Change(0.01),
    "seed": Change(99),
    "min_length": Change(7),
    "max_length": Change(1),
    "max_input_length": Change(2),
    "no_repeat_ngram_size": Change(1),
    "encoder_no_repeat_ngram_size": Change(1),
    "repetition_penalty": Change(900.0),
    "suppress_tokens": Change([5, 6, 7, 8, 9, "w10"]),
    "suppress_first_tokens": Change([5, 6, 7, 8, 9, "w10"]),
    "first_token": Change("w10"),
    "last_token": Change(2, {"max_length": 3}),
    "suppress_sequences": Change([[5], [6], [7], [8], [9], "w10"]),
    "disable_unk": Change(True, {"suppress_tokens": ONLY_UNKNOWN}),
    "end_tokens": Change([5, 6, 7, 8, 9]),
    "return_end_token": Change(True),
    "return_alternatives": Change(True, {"num_hypotheses": 2}),
    "min_alternative_probability": Change(0.9),
    "return_scores": Change(False),
    "return_token_scores": Change(True),
    "return_attention": Change(True),
    "attention_layer": Change(0, {"return_attention": True}),
    "attention_head": Change(1, {"return_attention": True}),
    "replace_unknowns": Change(True, {"suppress_tokens": ONLY_UNKNOWN}),
    "callback": Change(lambda step: step.position >= 0),
    "batch_size": Change(2),
    "batch_type": Change("tokens", {"batch_size": 7}),
    "truncate": Change(True, {"max_input_length": 3}),
}
# A model of one layer: its last layer is its first.
ALIKE = {"attention_layer"}


@pytest.fixture(name="translator", scope="module")
def _translator(tiny_bundle: Path) -> Translator:
    return Translator(tiny_bundle, threads=1)


def outcome(translator: Translator, options: dict[str, Any], monkeypatch: Any) -> Any:
    """All that a caller can see of a call, and how its rows were batched."""
    batches: list[int] = []
    decode = Engine._decode

    def counted(self: Engine, requests: Any, batch: Any, options: ResolvedOptions) -> Any:
        batches.append(len(batch))
        return decode(self, requests, batch, options)

    monkeypatch.setattr(Engine, "_decode", counted)
    # Ids as text: the options that act on text do, too.
    texts = [" ".join(translator.texts.target.piece(i) for i in row[:-1]) for row in ROWS]
    try:
        results = translator.translate(texts, **options)
    except InputError as error:
        return str(error)
    except ConfigError as error:
        return error
    found = [
        (result.text, [
            (made.tokens, repr(made.score), made.finished, made.token_scores,
             None if made.attention is None else made.attention.tolist())
            for made in result.hypotheses
        ])
        for result in results
    ]  # fmt: skip
    return found, batches


def test_every_option_is_walked_over() -> None:
    assert set(CHANGES) == {option.name for option in fields(DecodingOptions)}


@pytest.mark.parametrize("name", [name for name in CHANGES if name not in ALIKE])
def test_every_option_does_something_or_is_refused(
    translator: Translator, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, acted = CHANGES[name], 0
    for path, options in PATHS.items():
        given = {key: value for key, value in options.items() if key != name}
        before = {**given, **change.beside}
        changed = outcome(translator, {**before, name: change.value}, monkeypatch)
        if isinstance(changed, ConfigError):
            named = (known in str(changed) for known in (name, *change.beside))
            assert any(named), f"{path}: {changed}"
            continue
        acted += 1
        same = outcome(translator, before, monkeypatch)
        assert changed != same, f"{path}: {name} changes nothing"
    assert acted, f"{name} is refused everywhere"


@pytest.mark.parametrize("name", list(CHANGES))
def test_a_graph_that_holds_a_search_is_given_only_what_it_knows(name: str) -> None:
    cases: tuple[tuple[frozenset[str], Callable[[ResolvedOptions], bool], dict[str, Any]], ...] = (
        (GREEDY_GRAPH_OPTIONS, lambda made: made.fits_greedy_graph, {}),
        (BEAM_RULES_OPTIONS, lambda made: made.fits_beam_rules, {"beam_size": 4}),
    )
    for known, fits, base in cases:
        made = _unchecked({**base, name: CHANGES[name].value})
        resolved = name in ("end_tokens", "suppress_tokens", "suppress_sequences", "disable_unk")
        assert fits(made) == (name in known or resolved)


def _unchecked(options: dict[str, Any]) -> ResolvedOptions:
    """Options whatever their contradictions, as if nobody had thought of them."""
    made = object.__new__(DecodingOptions)
    for option in fields(DecodingOptions):
        object.__setattr__(made, option.name, options.get(option.name, option.default))
    return ResolvedOptions.of(made, 1, (2,), 5)


@pytest.mark.parametrize("name", list(CHANGES))
def test_an_option_that_is_switched_on_later_is_known_to_the_graph_too(name: str) -> None:
    cases: tuple[tuple[frozenset[str], Callable[[ResolvedOptions], bool], int], ...] = (
        (GREEDY_GRAPH_OPTIONS, lambda made: made.fits_greedy_graph, 1),
        (BEAM_RULES_OPTIONS, lambda made: made.fits_beam_rules, 4),
    )
    for known, fits, beam_size in cases:
        made = ResolvedOptions.of(DecodingOptions(beam_size=beam_size), 1, (2,), 5)
        changed = replace(made, **{name: CHANGES[name].value})
        # A seed draws nothing by itself; the unknown token is banned when options are resolved.
        acts = name not in ("seed", "disable_unk")
        assert fits(made)
        assert fits(changed) == (name in known or not acts)


@pytest.mark.parametrize(
    "resolved",
    [{"eos_id": 5}, {"suppress_tokens": (5,)}, {"suppress_sequences": ((5, 6),)}],
    ids=str,
)
def test_what_options_were_resolved_to_keeps_them_out_of_the_greedy_graph(
    resolved: dict[str, Any],
) -> None:
    made = ResolvedOptions.of(DecodingOptions(), 1, (2,), 5, **resolved)
    assert not made.fits_greedy_graph


# A program gives a function; and scores are left out where lines show none.
PYTHON_ONLY = {"callback", "return_scores"}


def test_every_option_can_be_said_on_the_command_line() -> None:
    shown = CliRunner().invoke(cli, ["translate", "--help"]).output
    for name in set(CHANGES) - PYTHON_ONLY:
        assert f"--{name.replace('_', '-')}" in shown
