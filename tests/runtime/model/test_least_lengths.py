"""Least lengths of greedy search inside the native engine."""

from pathlib import Path
from typing import Any

import pytest

from tests.runtime.scheduler.drawn import same
from tests.support.hf_generation import draw_rows, generate, own_ids
from tests.support.hf_models import make_model, save_folder
from tests.support.tiny_rows import rows_of
from tfexport.export import export
from tfexport.model_src.checkpoint.generation_config import read_generation
from tfexport.runtime import TranslationResult, Translator
from tfexport.runtime.engine import Engine
from tfexport.runtime.parallel.cpu import ThreadLayout
from tfexport.runtime.resolve import with_own
from tfexport.runtime.scheduler import Scheduler, SchedulerLimits, Submission
from tfexport.runtime.search import dispatch

pytest.importorskip("tfexport_native", reason="tfexport-native is not installed")

END = 2


def stepped(translator: Translator, rows: list[list[int]], **options: Any) -> Any:
    """What the search by all logits gives."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(translator.engine.model, "has_min_length", False)
        return translator.generate(rows, **options)


def alike(one: TranslationResult, other: TranslationResult) -> bool:
    (ours,), (theirs,) = one.hypotheses, other.hypotheses
    return (
        ours.tokens == theirs.tokens
        and ours.finished == theirs.finished
        and ours.score == pytest.approx(theirs.score, rel=1e-6, nan_ok=True)
    )


@pytest.mark.parametrize("rules", ["tfexport", "transformers"])
def test_one_call_gives_what_steps_give(
    tiny_bundle: Path, rules: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, acted = rows_of(20), set()
    with Translator(tiny_bundle, engine="native", threads=1) as translator:
        for least, most in ((1, 12), (5, 12), (9, 9), (40, 50)):
            options: dict[str, Any] = {
                "max_length": most, "search_rules": rules, "return_end_token": True,
            }  # fmt: skip
            plain = translator.generate(rows, **options)
            expected = stepped(translator, rows, min_length=least, **options)
            with monkeypatch.context() as patch:
                patch.setattr(dispatch, "StepwiseSearch", None)
                found = translator.generate(rows, min_length=least, **options)
            for one, other, free in zip(found, expected, plain, strict=True):
                assert alike(one, other)
                assert END not in one.hypotheses[0].tokens[:least]
                acted.add(one.hypotheses[0].tokens != free.hypotheses[0].tokens)
        assert acted == {True, False}
        # Without any other token a row ends as it is, which steps alone do.
        nothing: dict[str, Any] = {"suppress_tokens": [*range(END), *range(END + 1, 19)]}
        assert translator.manifest.limits.target_vocab_size == 19
        for made in translator.generate(rows, min_length=2, max_length=4, **nothing):
            assert made.hypotheses[0].tokens == []


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("no_search_graphs")
def test_tokens_are_those_of_transformers(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="make optional installs it")
    model, lengths = make_model("marian", 8), set()
    model.final_logits_bias[0, model.config.eos_token_id] += 2.0
    # What a bundle suppresses and forces is part of its search in one call.
    ends = model.config.eos_token_id
    own = {"bad_words_ids": [[model.config.pad_token_id]], "forced_eos_token_id": ends}
    save_folder(model, tmp_path / "model", **own)
    export(tmp_path / "model", tmp_path / "model.bundle", verify=False)
    base = {**own_ids(model), **own, "max_length": 16, "num_beams": 1}
    with Translator(tmp_path / "model.bundle", engine="native", threads=1) as translator:
        for more in ({}, {"min_length": 4}, {"min_new_tokens": 9}, {"min_length": 15}):
            settings = {**base, **more}
            rows = draw_rows(5, model, 6)
            defaults = with_own(read_generation(model.config.to_dict(), settings).defaults, {})
            resolved, _ = translator.engine.resolver.resolve(defaults)
            assert resolved.fits_greedy_of(translator.engine.model)
            for row, made in zip(rows, translator.generate(rows, **defaults), strict=True):
                tokens = made.hypotheses[0].tokens
                assert tokens == generate(model, row, settings).tokens, more
                lengths.add(len(tokens))
    assert len(lengths) > 3


@pytest.mark.parametrize("company", [False, True])
def test_rows_of_a_running_batch_have_least_lengths_of_their_own(
    tiny_bundle: Path, company: bool
) -> None:
    engine = Engine(tiny_bundle, ThreadLayout(threads=1), engine="native")
    scheduler = Scheduler(engine, SchedulerLimits(slots=6))
    jobs: list[tuple[list[int], dict[str, Any], Submission]] = []
    for number, row in enumerate(rows_of(36, seed=4)):
        options: dict[str, Any] = {
            "min_length": (0, 3, 0, 8, 19)[number % 5], "max_length": 20, "return_scores": False,
        }  # fmt: skip
        if company and number % 3 == 0:
            options["return_scores"] = True
        if company and number % 7 == 0:
            options["beam_size"] = 2
        resolved, (prefix,) = engine.resolver.resolve(options, [None])
        request = engine.request(row, 0, prefix, resolved, as_ids=True)
        jobs.append((row, options, scheduler.submit([request], resolved)))
    with Translator(tiny_bundle, engine="native", threads=1) as translator:
        for row, options, submission in jobs:
            (expected,) = stepped(translator, [row], **options)
            assert same(submission.future.result(60), [expected.hypotheses]), options
    scheduler.close()
