"""What a translator can do besides plain decoding, on a real bundle."""

import random
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support import tutorial
from tests.support.paths import VERSION_1
from tfexport.errors import ConfigError, InputError
from tfexport.runtime import TranslationResult, Translator
from tfexport.runtime.model.bundle_model import Model
from tfexport.runtime.options import Step
from tfexport.runtime.text.streaming import TextStream

WAYS: list[dict[str, Any]] = [
    {},
    {"beam_size": 4, "num_hypotheses": 3},
    {"beam_size": 4, "beam_groups": 2, "diversity_penalty": 0.5},
    {"beam_size": 3, "coverage_penalty": 0.2, "early_stopping": False},
    {"no_repeat_ngram_size": 2, "repetition_penalty": 1.2},
    {"return_alternatives": True, "num_hypotheses": 3},
    {"return_attention": True},
]


@pytest.fixture(scope="module")
def translator(tiny_bundle: Path) -> Translator:
    return Translator(tiny_bundle, threads=1)


def rows_of(number: int, seed: int = 0) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(3, 17) for _ in range(draw.randint(1, 12))] for _ in range(number)]


def tokens(results: list[TranslationResult]) -> list[list[list[int]]]:
    return [[made.tokens for made in result.hypotheses] for result in results]


def scores(results: list[TranslationResult]) -> list[float]:
    return [made.score for result in results for made in result.hypotheses]


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_batch_order_padding_and_threads_change_nothing(
    translator: Translator, tiny_bundle: Path, options: dict[str, Any]
) -> None:
    rows = rows_of(24)
    expected = translator.generate(rows, max_length=12, **options)
    backwards = translator.generate(rows[::-1], max_length=12, batch_size=5, **options)[::-1]
    by_tokens = translator.generate(
        rows, max_length=12, batch_size=30, batch_type="tokens", **options
    )
    alone = [translator.generate([row], max_length=12, **options)[0] for row in rows]
    two = Translator(tiny_bundle, threads=2).generate(rows, max_length=12, **options)
    with Translator(tiny_bundle, threads=1, workers=3) as many:
        worked = many.generate(rows, max_length=12, batch_size=4, **options)
    for other in (backwards, by_tokens, alone, two, worked):
        assert tokens(other) == tokens(expected)
        assert scores(other) == pytest.approx(scores(expected), abs=1e-5)


@torch.no_grad()
def eager_log_probs(
    model: tutorial.TutorialModel, row: list[int], target: list[int]
) -> list[float]:
    hidden = model.encode(torch.tensor(row).unsqueeze(1))
    logits = model.decode(torch.tensor([1, *target[:-1]]).unsqueeze(1), hidden)[:, 0]
    values = logits.log_softmax(-1)
    return [float(values[i, token]) for i, token in enumerate(target)]


def test_scores_are_eagers(translator: Translator, tutorial_model: tutorial.TutorialModel) -> None:
    rows = rows_of(20)
    ways: list[dict[str, Any]] = [{}, {"beam_size": 4}, {"sampling": True, "seed": 3}]
    for options in ways:
        found = translator.generate(
            rows, max_length=15, length_penalty=0.8, return_token_scores=True, **options
        )
        for row, result in zip(rows, found, strict=True):
            made = result.hypotheses[0]
            target = [*made.tokens, *([2] if made.finished else [])]
            expected = eager_log_probs(tutorial_model, row, target)
            assert made.token_scores == pytest.approx(expected, abs=1e-5)
            assert made.score == pytest.approx(sum(expected) / len(target) ** 0.8, abs=1e-5)
    targets = [random.Random(i).choices(range(3, 19), k=i % 7) for i in range(20)]
    scored = translator.score(rows, targets, return_token_scores=True, batch_size=6)
    for row, wanted, made in zip(rows, targets, scored, strict=True):
        assert made.tokens == wanted
        assert made.token_scores == pytest.approx(
            eager_log_probs(tutorial_model, row, [*wanted, 2]), abs=1e-5
        )


def test_attention_is_eagers(
    translator: Translator, tutorial_model: tutorial.TutorialModel
) -> None:
    rows = rows_of(8)
    layer = tutorial_model.transformer.decoder.layers[-1].multihead_attn
    for head in (None, 1):
        found = translator.generate(rows, max_length=10, return_attention=True, attention_head=head)
        for row, result in zip(rows, found, strict=True):
            made = result.hypotheses[0]
            assert made.attention is not None
            assert made.attention.shape == (len(made.tokens), len(row))
            seen: list[Any] = []

            def keep(
                module: Any, inputs: Any, keywords: Any, output: Any, seen: Any = seen
            ) -> None:
                with torch.no_grad():
                    queries, keys = inputs[0], inputs[1]
                    _, weights = torch.nn.MultiheadAttention.forward(
                        module, queries, keys, keys, need_weights=True, average_attn_weights=False
                    )
                assert weights is not None
                seen.append(weights[0])

            hook = layer.register_forward_hook(keep, with_kwargs=True)
            with torch.no_grad():
                hidden = tutorial_model.encode(torch.tensor(row).unsqueeze(1))
                tutorial_model.decode(torch.tensor([1, *made.tokens]).unsqueeze(1), hidden)
            hook.remove()
            weights = seen[0].mean(0) if head is None else seen[0][head]
            assert np.allclose(made.attention, weights[: len(made.tokens)], atol=1e-5)


def test_prefix_of_text_and_of_ids_begins_the_target(translator: Translator) -> None:
    texts = ["w5 w6", "w7", "w8 w9 w4"]
    found = translator.translate(texts, target_prefix=["w9 w10", [9, 10], None], max_length=6)
    assert [result.hypotheses[0].tokens[:2] for result in found[:2]] == [[9, 10], [9, 10]]
    assert found[0].text is not None
    assert found[0].text.startswith("w9 w10")
    assert found[2].hypotheses == translator.translate(texts[2:], max_length=6)[0].hypotheses


def test_end_tokens_and_the_end_token_kept(translator: Translator) -> None:
    rows = rows_of(10)
    plain = translator.generate(rows, max_length=20)
    kept = translator.generate(rows, max_length=20, return_end_token=True)
    for one, two in zip(plain, kept, strict=True):
        end = [2] if one.hypotheses[0].finished else []
        assert two.hypotheses[0].tokens == one.hypotheses[0].tokens + end
    first = plain[0].hypotheses[0].tokens[1]
    stopped = translator.generate(rows[:1], max_length=20, end_tokens=[first])
    assert stopped[0].hypotheses[0].tokens == plain[0].hypotheses[0].tokens[:1]


@pytest.mark.parametrize("options", [{}, {"sampling": True, "seed": 4}], ids=str)
def test_a_stream_is_the_translation_in_pieces(
    translator: Translator, options: dict[str, Any]
) -> None:
    for text in ("w5 w6 w7", "w12", "w4 w4 w9 w10 w11"):
        pieces = list(translator.stream(text, max_length=12, **options))
        assert "".join(pieces) == translator.translate([text], max_length=12, **options)[0].text
        assert all(pieces)
    assert list(translator.stream("  ")) == []
    assert len(list(translator.stream("w5 w6 w7", max_length=12))) > 3


def test_a_stream_decodes_no_further_than_it_is_read(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    step = Model.step

    def counted(self: Model, *arguments: Any) -> Any:
        steps.append(1)
        return step(self, *arguments)

    monkeypatch.setattr(Model, "step", counted)
    stream = translator.stream("w5 w6 w7", max_length=12)
    assert not steps, "nothing is decoded before it is asked for"
    next(stream)
    read = len(steps)
    assert read <= 3
    stream.close()  # type: ignore[attr-defined]
    assert len(steps) == read
    list(translator.stream("w5 w6 w7", max_length=12))
    assert len(steps) - read == 12


def test_no_piece_of_a_stream_splits_a_character() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(
        {char: i for i, char in enumerate(sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()))},
        [],
    ))  # fmt: skip
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    text = "Straße 👩‍🚀 日本語 é\u0301 naïve \ufffd end"
    stream = TextStream(tokenizer.decode)
    pieces = [stream.add(token) for token in tokenizer.encode(text).ids] + [stream.end()]
    assert "".join(pieces) == text
    assert len([piece for piece in pieces if piece]) > 20
    assert not any("\ufffd" in piece for piece in pieces[:-6])


def test_words_that_a_decoder_joins_later_are_not_shown_too_early() -> None:
    def decode(ids: Any) -> str:  # as WordPiece's clean-up does
        return " ".join(["don", "'", "t", "go"][i] for i in ids).replace(" ' ", "'")

    stream = TextStream(decode, whole_words=True)
    pieces = [stream.add(i) for i in range(4)] + [stream.end()]
    assert pieces == ["", "don", "", "'t", " go"]


def test_any_number_of_texts_in_order(translator: Translator) -> None:
    texts = [f"w{4 + i % 13} w{4 + i % 7} w{4 + i % 5}" for i in range(150)] + ["", "w5"]
    expected = translator.translate(texts, max_length=8, batch_size=4)
    found = list(translator.translate_iterable(iter(texts), max_length=8, batch_size=4))
    assert tokens(found) == tokens(expected)
    assert [result.text for result in found] == [result.text for result in expected]
    endless = translator.translate_iterable((f"w{4 + i % 13}" for i in count()), max_length=3,
                                            batch_size=2)  # fmt: skip
    assert len(list(islice(endless, 100))) == 100


def test_reading_stays_a_little_ahead(translator: Translator) -> None:
    asked = 0

    def texts() -> Iterator[str]:
        nonlocal asked
        for _ in range(10_000):
            asked += 1
            yield "w5 w6"

    results = translator.translate_iterable(texts(), max_length=2, batch_size=2)
    for _ in range(100):
        next(results)
    assert asked <= 100 + 3 * 16 * 2
    asked = 0
    results = translator.translate_iterable(
        texts(), max_length=2, batch_size=64, batch_type="tokens"
    )
    next(results)
    assert asked <= 3 * 16 * 2, "64 tokens are about two rows"


def test_a_bad_text_is_raised_when_its_turn_comes(translator: Translator) -> None:
    results = translator.translate_iterable(iter(["w5", "w6", "\ud800", "w7"]), max_length=3)
    assert len([next(results), next(results)]) == 2
    with pytest.raises(InputError, match="text 2: not valid Unicode"):
        next(results)
    with pytest.raises(InputError, match=r"text 0: expected a string, found \[5, 6\]"):
        next(translator.translate_iterable([[5, 6]]))  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="top_k needs sampling"):
        translator.translate_iterable([], top_k=3)


def test_samples_of_a_row_do_not_depend_on_how_it_was_asked_for(translator: Translator) -> None:
    texts = [f"w{4 + i % 13} w7" for i in range(40)]
    options: dict[str, Any] = {"sampling": True, "seed": 5, "max_length": 8}
    expected = tokens(translator.translate(texts, **options))
    assert tokens(list(translator.translate_iterable(texts, batch_size=2, **options))) == expected
    assert tokens(translator.translate(texts, batch_size=7, **options)) == expected
    assert tokens(translator.translate(texts, **{**options, "seed": 6})) != expected
    unseeded: dict[str, Any] = {"sampling": True, "max_length": 8}
    assert tokens(translator.translate(texts, **unseeded)) != tokens(
        translator.translate(texts, **unseeded)
    )


def test_asynchronous_submissions_from_many_threads(tiny_bundle: Path) -> None:
    with Translator(tiny_bundle, threads=1, workers=2, queue_size=2) as translator:
        sets = [rows_of(9, seed) for seed in range(8)]
        expected = [tokens(translator.generate(rows, max_length=9, beam_size=2)) for rows in sets]
        futures: list[Future[list[TranslationResult]] | None] = [None] * 8

        def submit(slot: int) -> None:
            futures[slot] = translator.generate(
                sets[slot], max_length=9, beam_size=2, batch_size=3, asynchronous=True
            )

        threads = [threading.Thread(target=submit, args=(slot,)) for slot in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = [future.result(timeout=60) for future in futures if future is not None]
        assert [tokens(results) for results in found] == expected
        assert translator.generate([], asynchronous=True).result(timeout=60) == []
        with pytest.raises(InputError, match="row 0"):
            translator.generate([[99]], asynchronous=True)


def test_an_error_of_a_worker_reaches_its_future(tiny_bundle: Path) -> None:
    def fail(step: object) -> bool:
        raise RuntimeError("stop here")

    with Translator(tiny_bundle, threads=1) as translator:
        future = translator.generate([[5]], callback=fail, asynchronous=True)
        with pytest.raises(RuntimeError, match="stop here"):
            future.result(timeout=60)
        assert translator.generate([[5]], max_length=2, asynchronous=True).result(timeout=60)


def test_vocabulary_map_limits_what_may_be_chosen(tiny_bundle: Path, tmp_path: Path) -> None:
    path = tmp_path / "map.txt"
    path.write_text("w5\tw6 w7\nw8\tw9\n\tw10\n", encoding="utf-8")
    for given in (path, {5: [6, 7], 8: [9], -1: [10]}):
        translator = Translator(tiny_bundle, threads=1, vocabulary_map=given)
        for beam in (1, 3):
            found = translator.translate(
                ["w5 w5", "w8", "w5 w8", "w4"], max_length=6, beam_size=beam
            )
            allowed = [{6, 7, 10}, {9, 10}, {6, 7, 9, 10}, {10}]
            for result, ids in zip(found, allowed, strict=True):
                assert set(result.hypotheses[0].tokens) <= ids
    path.write_text("w5\tnope\nw6 w7\n", encoding="utf-8")
    with pytest.raises(InputError, match="line 2 holds no tab"):
        Translator(tiny_bundle, vocabulary_map=path)
    path.write_text("w5\tnope\nhuh\tw5\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"(?s)line 1: 'nope' is no token.*line 2: 'huh'"):
        Translator(tiny_bundle, vocabulary_map=path)


def test_unknown_words_are_replaced_by_what_they_attended_to(translator: Translator) -> None:
    # Only the unknown token may be chosen, so that every place shows its source word.
    everything = [i for i in range(19) if i not in (2, 3)]
    options: dict[str, Any] = {"suppress_tokens": everything, "min_length": 3, "max_length": 3}
    text = "w5 Käse w7"
    found = translator.translate([text], return_attention=True, replace_unknowns=True, **options)[0]
    assert found.text is not None
    words = text.split()
    aligned = {t: s for s, t in found.alignment()}
    assert found.text.split() == [words[aligned[t]] for t in range(3)]
    assert found.framing == (0, 1)
    quiet = translator.translate([text], replace_unknowns=True, **options)[0]
    assert quiet.text == found.text
    assert quiet.hypotheses[0].attention is None


def test_callback_ends_a_row(translator: Translator) -> None:
    seen: list[int] = []

    def call(step: Step) -> bool:
        seen.append(step.token)
        return step.position == 1 and step.row == 0

    found = translator.generate([[5, 6], [7]], max_length=9, min_length=9, callback=call)
    assert [len(result.hypotheses[0].tokens) for result in found] == [2, 9]
    assert len(seen) == 11


def test_bundle_without_attention_says_so(tmp_path: Path) -> None:
    import shutil

    old = VERSION_1
    shutil.copytree(old, tmp_path / "old.bundle")
    translator = Translator(tmp_path / "old.bundle")
    assert translator.generate([[5, 6]], max_length=3, beam_size=2)
    with pytest.raises(ConfigError, match="attention is not in this bundle"):
        translator.generate([[5, 6]], return_attention=True)
