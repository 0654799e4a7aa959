"""Rows of a corpus: what Translator gives, in any company, and an error that costs no other row."""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tfexport.corpus import row_decoder
from tfexport.corpus.row_decoder import CorpusRow, RowDecoder, RowResult, Task
from tfexport.errors import ConfigError, Option, TokenizerError
from tfexport.runtime import Translator
from tfexport.runtime.engine import Engine
from tfexport.runtime.parallel.cpu import ThreadLayout

DRAW = random.Random(11)
TEXTS = [
    " ".join(f"w{DRAW.randrange(4, 20)}" for _ in range(DRAW.randint(1, 20))) for _ in range(40)
]


@pytest.fixture(name="engine", scope="module")
def _engine(tiny_bundle: Path) -> Engine:
    return Engine(tiny_bundle, ThreadLayout(threads=1))


@pytest.fixture(name="translator", scope="module")
def _translator(tiny_bundle: Path) -> Translator:
    return Translator(tiny_bundle, threads=1)


def decoder(engine: Engine, **options: Any) -> RowDecoder:
    return RowDecoder(engine, Task({"max_length": 20, **options}))


def rows_of(texts: Sequence[Any]) -> list[CorpusRow]:
    return [CorpusRow(text, number) for number, text in enumerate(texts)]


def same(found: Sequence[RowResult], expected: Sequence[RowResult]) -> None:
    """Equal but for the rounding of scores, which depends on a batch."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert (one.translation, one.error, one.tokens) == (
            other.translation,
            other.error,
            other.tokens,
        )
        assert one.score == (None if other.score is None else pytest.approx(other.score, abs=1e-5))


@pytest.mark.parametrize(
    "options",
    [{}, {"beam_size": 3, "length_penalty": 0.5}, {"batch_size": 1}, {"return_end_token": True},
     {"batch_size": 64, "batch_type": "tokens"}, {"suppress_tokens": ("w5",), "min_length": 3}],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("threads", [1, 2])
def test_rows_are_what_a_translator_gives(
    tiny_bundle: Path, translator: Translator, options: dict[str, Any], threads: int
) -> None:
    expected = translator.translate(TEXTS, max_length=20, **options)
    found = decoder(Engine(tiny_bundle, ThreadLayout(threads=threads)), **options).decode(
        rows_of(TEXTS)
    )
    assert [row.translation for row in found] == [result.text for result in expected]
    scores = [result.hypotheses[0].score for result in expected]
    assert [row.score for row in found] == pytest.approx(scores, abs=1e-5)
    assert [row.tokens for row in found] == [
        len(result.hypotheses[0].tokens) for result in expected
    ]
    assert {row.error for row in found} == {None}
    assert len({row.translation for row in found}) > 10


@pytest.mark.parametrize("sampling", [False, True])
def test_company_and_order_change_nothing(engine: Engine, sampling: bool) -> None:
    given = decoder(engine, sampling=True, temperature=1.5) if sampling else decoder(engine)
    rows = rows_of([TEXTS[0], *TEXTS[:20], TEXTS[0]])
    together = given.decode(rows)
    same([given.decode([row])[0] for row in rows], together)
    for seed in range(3):
        order = random.Random(seed).sample(range(len(rows)), len(rows))
        found = given.decode([rows[place] for place in order])
        same(found, [together[place] for place in order])
    same([*given.decode(rows[:7]), *given.decode(rows[7:])], together)
    # A row draws by its number, so that equal texts are not drawn alike.
    alike = {together[place].translation for place in (0, 1, 21)}
    assert len(alike) == (3 if sampling else 1)


def test_a_seed_is_kept_by_every_worker_and_changes_draws(engine: Engine) -> None:
    rows = rows_of(TEXTS[:10])
    drawn = [decoder(engine, sampling=True, **seed).decode(rows)
             for seed in ({}, {}, {"seed": 0}, {"seed": 1})]  # fmt: skip
    assert drawn[0] == drawn[1] == drawn[2]
    assert drawn[0] != drawn[3]


BAD: list[tuple[CorpusRow, str]] = [
    (CorpusRow(None, 1), "null is not a string"),
    (CorpusRow(5, 1), "5 is not a string"),
    (CorpusRow(b"w5", 1), "b'w5' is not a string"),
    (CorpusRow(["w5"], 1), "['w5'] is not a string"),
    (CorpusRow("w5", 1, problem="not UTF-8"), "not UTF-8"),
    (CorpusRow(" ".join(["w5"] * 64), 1), "65 tokens exceed the model's limit of 64"),
    (CorpusRow("a\ud800b", 1), "not valid Unicode text"),
    (CorpusRow("x" * (row_decoder.MAX_ROW_BYTES + 1), 1), "1,048,577 characters; the limit is"),
    (CorpusRow("w5", 1, target_prefix=" ".join(["w6"] * 99)), "target prefix: "),
    (CorpusRow("w5", 1, target_prefix="\udfff"), "target prefix: "),
]


def test_a_bad_row_costs_no_other(engine: Engine) -> None:
    given, good = decoder(engine), rows_of(TEXTS[:12])
    expected = given.decode(good)
    mixed = [row for pair in zip(good, (bad for bad, _ in BAD), strict=False) for row in pair]
    found = given.decode(mixed)
    same(found[::2], expected[: len(BAD)])
    for (row, message), decoded in zip(BAD, found[1::2], strict=True):
        assert decoded.error is not None, row
        assert decoded.error.startswith(message) or message in decoded.error
        assert decoded == RowResult(None, None, decoded.error)
        assert decoded.error.encode()
    assert given.decode([bad for bad, _ in BAD if bad.problem])[0].error == "not UTF-8"
    assert given.decode([]) == []


def test_an_error_is_written_as_its_front_end_spells_options(engine: Engine) -> None:
    def flag(option: Option) -> str:
        return f"--{option.name.replace('_', '-')}"

    long = " ".join(["w5"] * 64)
    (found,) = RowDecoder(engine, Task(spell=flag)).decode([CorpusRow(long, 0)])
    (plain,) = RowDecoder(engine, Task()).decode([CorpusRow(long, 0)])
    assert "--truncate" in str(found.error)
    assert "truncate=True" in str(plain.error)
    (cut,) = decoder(engine, truncate=True).decode([CorpusRow(long, 0)])
    assert cut.error is None


def test_a_blank_row_gives_an_empty_translation(engine: Engine) -> None:
    found = decoder(engine).decode(rows_of(["", "w5 w6", " \t ", "\u3000"]))
    assert [row.translation == "" for row in found] == [True, False, True, True]
    assert found[0] == RowResult("", 0.0)


def test_a_row_may_have_a_prefix_of_its_own(engine: Engine, translator: Translator) -> None:
    prefixes = [None, "w7 w8", "", "w9"]
    rows = [CorpusRow("w12 w4 w5", 0, target_prefix=prefix) for prefix in prefixes]
    for general in (None, "w10"):
        found = RowDecoder(engine, Task({"max_length": 9}, target_prefix=general)).decode(rows)
        asked = [general if prefix is None else prefix for prefix in prefixes]
        expected = translator.translate(["w12 w4 w5"] * 4, max_length=9, target_prefix=asked)
        assert [row.translation for row in found] == [result.text for result in expected]
        assert str(found[1].translation).startswith("w7 w8")


class Poisoned:
    """Decodes as before, but raises for every batch with a row of some lengths."""

    def __init__(self, engine: Engine, lengths: set[int], error: Exception) -> None:
        self.whole, self.lengths, self.error, self.calls = engine.decode, lengths, error, 0

    def __call__(self, requests: Any, options: Any) -> Any:
        self.calls += 1
        if any(len(request.ids) in self.lengths for request in requests):
            raise self.error
        return self.whole(requests, options)


@pytest.mark.parametrize("poison", [{9}, {2, 12}, {*range(99)}])
@pytest.mark.parametrize("error", [RuntimeError("onnxruntime: 17"), ValueError()])
def test_a_row_that_kills_its_batch_fails_alone(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, poison: set[int], error: Exception
) -> None:
    rows = rows_of([" ".join(["w5"] * length) for length in range(1, 17)])
    given = decoder(engine, sampling=True)
    expected = given.decode(rows)
    poisoned = Poisoned(engine, poison, error)
    monkeypatch.setattr(engine, "decode", poisoned)
    found = given.decode(rows)
    for row, decoded, sound in zip(rows, found, expected, strict=True):
        if len(row.source.split()) + 1 in poison:
            assert decoded == RowResult(None, None, f"could not be decoded: {error}")
        else:
            same([decoded], [sound])
    assert poisoned.calls < 2 * len(rows)


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("[ONNXRuntimeError] : 6 : std::bad_alloc"),
     RuntimeError("bfc_arena.cc Failed to allocate memory for requested buffer of size 9")],
)  # fmt: skip
@pytest.mark.parametrize("rows", [1, 8])
def test_a_lack_of_memory_is_no_error_of_a_row(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, error: Exception, rows: int
) -> None:
    given = decoder(engine)
    monkeypatch.setattr(engine, "decode", Poisoned(engine, {*range(99)}, error))
    with pytest.raises(MemoryError) as caught:
        given.decode(rows_of(TEXTS[:rows]))
    assert str(caught.value) == str(error)


def test_a_key_of_the_user_ends_everything(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(requests: Any, options: Any) -> Any:
        raise KeyboardInterrupt

    given = decoder(engine)
    monkeypatch.setattr(engine, "decode", stop)
    with pytest.raises(KeyboardInterrupt):
        given.decode(rows_of(TEXTS[:4]))


@pytest.mark.parametrize(
    "option",
    [{"num_hypotheses": 2, "beam_size": 2}, {"return_attention": True},
     {"return_token_scores": True}, {"return_alternatives": True, "num_hypotheses": 2},
     {"callback": print}],
    ids=str,
)  # fmt: skip
def test_what_has_no_place_in_a_row_is_refused_by_name(
    engine: Engine, option: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError) as caught:
        decoder(engine, **option, beam_sise=2)
    asked = [name for name in option if name != "beam_size"]
    for name in asked:
        assert f"{name}: the rows of a corpus have no column for its result" in str(caught.value)
    assert "did you mean 'beam_size'" in str(caught.value)
    quiet = {name: 1 if name == "num_hypotheses" else False for name in asked if name != "callback"}
    assert decoder(engine, **quiet).decode([CorpusRow("w5", 0)])[0].error is None


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (Task({"beam_size": 0}), "beam_size: 0 is less than 1"),
        (Task({"temperature": 2.0}), "sampling"),
        (Task(target_prefix="\ud800"), "target_prefix"),
        (
            Task(source_language="de"),
            "source_language: 'de'",
        ),
    ],
)
def test_a_task_that_does_not_fit_is_refused(engine: Engine, task: Task, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RowDecoder(engine, task)


@pytest.mark.parametrize(
    "options",
    [{}, {"beam_size": 3}, {"sampling": True, "top_k": 3}, {"no_repeat_ngram_size": 2},
     {"return_scores": True}, {"replace_unknowns": True}],
    ids=str,
)  # fmt: skip
def test_without_scores_translations_are_the_same(engine: Engine, options: dict[str, Any]) -> None:
    rows, given = rows_of(TEXTS[:15]), decoder(engine, **options)
    found = given.decode(rows, scores=False)
    same(found, [replace(row, score=None) for row in given.decode(rows)])
    asked = decoder(engine, **{**options, "return_scores": False})
    same(asked.decode(rows), found)


def test_a_bundle_without_a_tokenizer_has_no_corpus(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(text: str) -> None:
        raise TokenizerError("no tokenizer")

    monkeypatch.setattr(engine.texts, "encode_target", refuse)
    with pytest.raises(TokenizerError):
        RowDecoder(engine, Task())


def test_a_translation_without_an_end_is_called_cut(engine: Engine) -> None:
    for scores in (True, False):
        found = decoder(engine, max_length=1).decode(rows_of(["w5", ""]), scores)
        assert [row.cut for row in found] == [True, False]
