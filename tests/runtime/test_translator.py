import json
import math
import random
import threading
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support import tutorial
from tests.support.paths import VERSION_1
from tfexport.bundle import read_manifest
from tfexport.errors import BundleError, ConfigError, InputError, TokenizerError
from tfexport.runtime import DecodingOptions, Translator
from tfexport.runtime.files.line_stream import LineFormat, LineResult
from tfexport.runtime.model.onnxruntime_model import OnnxModel
from tfexport.runtime.search import greedy, greedy_in_one_call


@pytest.fixture(scope="module")
def translator(tiny_bundle: Path) -> Translator:
    return Translator(tiny_bundle, threads=1)


def random_rows(count: int, longest: int = 12) -> list[list[int]]:
    generator = random.Random(5)
    return [
        [generator.randrange(17) for _ in range(generator.randint(1, longest))]
        for _ in range(count)
    ]


def test_rows_of_different_lengths_equal_the_tutorials_loop(
    translator: Translator, tutorial_model: tutorial.TutorialModel
) -> None:
    rows = random_rows(60)
    found = translator.generate(rows, max_length=20)
    expected = [tutorial.greedy(tutorial_model, row, 20, bos=1, eos=2) for row in rows]
    assert [result.hypotheses[0].tokens for result in found] == expected
    assert len({len(tokens) for tokens in expected}) > 3, "rows end at different steps"


@pytest.mark.parametrize("batch_size", [1, 2, 7, 64])
@pytest.mark.parametrize("threads", [1, 2])
def test_results_do_not_depend_on_batch_or_threads(
    tiny_bundle: Path, translator: Translator, batch_size: int, threads: int
) -> None:
    rows = random_rows(20)
    expected = translator.generate(rows, max_length=15)
    other = Translator(tiny_bundle, threads=threads)
    found = other.generate(rows[::-1], max_length=15, batch_size=batch_size)[::-1]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.hypotheses[0].tokens == theirs.hypotheses[0].tokens
        assert ours.hypotheses[0].score == pytest.approx(theirs.hypotheses[0].score, abs=1e-5)


def test_score_is_the_mean_log_probability(
    translator: Translator, tutorial_model: tutorial.TutorialModel
) -> None:
    row = [12, 4, 4, 5, 6]
    hypothesis = translator.generate([row], max_length=4)[0].hypotheses[0]
    target = torch.tensor([1, *hypothesis.tokens[:-1]]).unsqueeze(1)
    logits = tutorial_model(torch.tensor(row).unsqueeze(1), target)[:, 0]
    chosen = logits.log_softmax(-1)[range(4), hypothesis.tokens]
    assert hypothesis.score == pytest.approx(float(chosen.mean()), abs=1e-5)


def test_text_goes_in_and_comes_out(translator: Translator) -> None:
    results = translator.translate(["w12 w4 w4 w5 w6", "", "  \t ", "w5 unknown"], max_length=4)
    assert results[0].text == " ".join(f"w{i}" for i in results[0].hypotheses[0].tokens)
    assert [result.text for result in results[1:3]] == ["", ""]
    assert results[1].hypotheses[0].tokens == []
    assert translator.encode("w5 unknown") == [5, 3, 2], "unk for the unknown, eos behind"


def test_ids_are_taken_as_they_are(translator: Translator) -> None:
    assert translator.generate([[12, 4], []])[0].text is None
    with_end = translator.generate([[12, 4, 2]])
    assert with_end != translator.generate([[12, 4]]), "no framing is added"
    assert translator.generate(np.array([[12, 4]])) == translator.generate([[12, 4]])


STORED = ["w12 w4 w4 w5 w6", "w4 w5", "w9"]
FOUND = [[6, 15, 5, 7, 7, 7], [16, 16, 16, 16, 9, 16], []]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, FOUND),
        ({"beam_size": 3}, FOUND),
        ({"return_attention": True}, FOUND),
        (
            {"beam_size": 2, "no_repeat_ngram_size": 2},
            [[6, 15, 5, 7, 7, 16], [16, 16, 7, 7, 16, 1], []],
        ),
    ],
    ids=["greedy", "beam", "steps", "beam in steps"],
)
def test_stored_version_1_bundle_decodes_as_it_always_did(
    options: dict[str, Any], expected: list[list[int]]
) -> None:
    translator = Translator(VERSION_1)
    results = translator.translate(STORED, max_length=6, **options)
    assert [result.hypotheses[0].tokens for result in results] == expected
    (scored,) = translator.score(["w4 w5"], ["w16 w9"])
    assert scored.score == pytest.approx(-2.80163, abs=1e-4)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([5, 17], r"id 17 is not in the vocabulary \(0 to 16\)"),
        ([-1], "id -1 is not in the vocabulary"),
        (["5"], "'5' is not an integer"),
        ([5.0], "5.0 is not an integer"),
        ([True], "True is not an integer"),
        ("5 6", "expected a list of ids"),
        ([5] * 65, "65 tokens exceed the model's limit of 64"),
    ],
)
def test_bad_row_is_named(translator: Translator, row: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        translator.generate([[5], row])
    assert "row 1" in str(caught.value)


def test_all_bad_inputs_are_named_at_once(translator: Translator) -> None:
    with pytest.raises(InputError) as caught:
        translator.translate(["w5", 7, "a\ud800b"])  # type: ignore[list-item]
    assert "text 1: expected a string, found 7" in str(caught.value)
    assert "text 2: not valid Unicode text" in str(caught.value)
    with pytest.raises(InputError, match="found one string"):
        translator.translate("w5")


def test_long_input_is_cut_by_choice_and_keeps_its_frame(translator: Translator) -> None:
    text = " ".join(["w5"] * 100)
    with pytest.raises(InputError, match="101 tokens exceed the model's limit of 64"):
        translator.translate([text])
    ids = translator.encode(text, truncate=True)
    assert ids == [5] * 63 + [2]
    cut = translator.translate([text], truncate=True, max_length=3)
    assert cut[0].hypotheses == translator.generate([ids], max_length=3)[0].hypotheses
    assert translator.generate([[5] * 100], truncate=True, max_length=3) == translator.generate(
        [[5] * 64], max_length=3
    )


def test_max_length_is_bounded_by_the_model(translator: Translator) -> None:
    lengths = [
        len(result.hypotheses[0].tokens)
        for result in translator.generate(random_rows(20), max_length=100_000)
    ]
    assert max(lengths) == 64
    assert translator.generate([[5]], max_length=0)[0].hypotheses[0].tokens == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_lenght": 3}, "unknown option 'max_lenght'; did you mean 'max_length'"),
        ({"max_length": -1}, "max_length: -1 is less than 0"),
        ({"batch_size": 0}, "batch_size: 0 is less than 1"),
        ({"batch_size": 2.0}, "batch_size: 2.0 is not an integer"),
        ({"truncate": "yes"}, "truncate: 'yes' is not true or false"),
    ],
)
def test_bad_option_is_named(translator: Translator, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        translator.generate([[5]], **options)


@pytest.mark.parametrize(
    ("argument", "calls"),
    [("terms", "translate"), ("required", "generate"), ("asynchronous", "translate and generate")],
)
def test_calls_without_an_argument_name_those_that_have_it(
    translator: Translator, argument: str, calls: str
) -> None:
    given: dict[str, tuple[Any, ...]] = {
        "translate": (["w4"],), "generate": ([[5]],), "generate_from": ([],), "transcribe": ([],),
        "score": ([], []), "stream": ("w4",), "translate_iterable": ([],),
        "translate_file": ("a", "b"),
    }  # fmt: skip
    having = [name for name in given if argument in signature(getattr(Translator, name)).parameters]
    assert " and ".join(having) == calls
    for name in given.keys() - having:
        with pytest.raises(ConfigError, match=rf"{argument}.* an argument of {calls} only"):
            getattr(translator, name)(*given[name], **{argument: None})


def test_every_option_is_documented() -> None:
    text = DecodingOptions.__doc__ or ""
    assert all(f"        {name}: " in text for name in DecodingOptions.__dataclass_fields__)


def test_one_translator_serves_many_threads(translator: Translator) -> None:
    rows = random_rows(8)
    expected = translator.generate(rows, max_length=15)
    found: list[Any] = [None] * 6

    def work(slot: int) -> None:
        found[slot] = [translator.generate(rows, max_length=15) for _ in range(5)]

    threads = [threading.Thread(target=work, args=(slot,)) for slot in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for runs in found:
        for run in runs:
            assert [r.hypotheses[0].tokens for r in run] == [
                r.hypotheses[0].tokens for r in expected
            ]


def test_bundle_without_tokenizer_takes_ids_only(
    tmp_path: Path, tutorial_model: tutorial.TutorialModel
) -> None:
    from tests.conftest import CONFIG
    from tfexport.export import export

    export(tutorial_model, tmp_path / "a.bundle", config=CONFIG, verify=False)
    translator = Translator(tmp_path / "a.bundle")
    assert len(translator.generate([[5, 6]], max_length=3)) == 1
    with pytest.raises(TokenizerError, match="holds no tokenizer"):
        translator.translate(["w5"])


@pytest.mark.onnxruntime
def test_graph_that_onnxruntime_cannot_load_is_named(tmp_path: Path, tiny_bundle: Path) -> None:
    import shutil

    from tfexport.bundle import read_manifest, write_manifest

    shutil.copytree(tiny_bundle, tmp_path / "a.bundle")
    (tmp_path / "a.bundle" / "generate.onnx").write_bytes(b"no graph")
    manifest = read_manifest(tmp_path / "a.bundle")
    (tmp_path / "a.bundle" / "manifest.json").unlink()
    write_manifest(tmp_path / "a.bundle", manifest)
    with pytest.raises(BundleError, match=r"generate\.onnx: onnxruntime .* cannot load it"):
        Translator(tmp_path / "a.bundle")


@pytest.mark.parametrize("threads", [-1, True, "2"])
def test_bad_thread_count_is_refused(tiny_bundle: Path, threads: Any) -> None:
    with pytest.raises(ConfigError, match="threads"):
        Translator(tiny_bundle, threads=threads)


def test_scores_are_finite(translator: Translator) -> None:
    scores = [r.hypotheses[0].score for r in translator.generate(random_rows(10), max_length=9)]
    assert all(math.isfinite(score) and score < 0 for score in scores)


@pytest.mark.onnxruntime
def test_bundle_that_needs_a_newer_onnxruntime_names_both_versions(
    tmp_path: Path, tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onnxruntime.__version__", "1.9.0.dev20")
    message = r"needs onnxruntime 1\.21 or newer; this is 1\.9\.0\.dev20\. .*'onnxruntime>=1\.21'"
    with pytest.raises(BundleError, match=message):
        Translator(tiny_bundle)


def test_scores_can_be_left_out(tiny_bundle: Path) -> None:
    translator = Translator(tiny_bundle)
    rows = random_rows(7)
    scored = translator.generate(rows, max_length=12, return_end_token=True)
    bare = translator.generate(rows, max_length=12, return_end_token=True, return_scores=False)
    assert [r.hypotheses[0].tokens for r in bare] == [r.hypotheses[0].tokens for r in scored]
    assert all(math.isfinite(r.hypotheses[0].score) for r in scored)
    assert all(math.isnan(r.hypotheses[0].score) for r in bare)
    # In every search.
    (found,) = translator.generate(rows[:1], max_length=12, beam_size=2, return_scores=False)
    assert math.isnan(found.hypotheses[0].score)
    write = LineFormat(jsonl=True, ids=True).write
    assert json.loads(write(LineResult(1, bare[0]))[0])["score"] is None


def test_two_graphs_and_one_call_give_the_same(tiny_bundle: Path) -> None:
    rows = [[5, 6, 7], [8], [9, 2, 4, 4, 11], [16, 3]]
    model = OnnxModel(tiny_bundle, read_manifest(tiny_bundle))
    for batch in (rows, rows[:1]):
        stepped = greedy(model, batch, 20, bos_id=1, eos_id=2)
        called = greedy_in_one_call(model, batch, 20, eos_id=2)
        assert [h.tokens for h in called] == [h.tokens for h in stepped]
        assert [h.score for h in called] == pytest.approx([h.score for h in stepped], abs=1e-5)
