"""``generate`` of a bundle compared with ``generate`` of transformers, on the same folders."""

import json
import math
import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import leave_out_graphs
from tests.support.combinations import few_of
from tests.support.hf_generation import (
    Found,
    draw_rows,
    draw_settings,
    generate,
    generate_all,
    own_ids,
    vocab_size,
)
from tests.support.hf_models import change_json, make_model, save_folder
from tests.support.tokenizer_folders import model_file_folder
from tfexport import graph_io
from tfexport.export import export
from tfexport.model_src import load_checkpoint
from tfexport.model_src.checkpoint.generation_config import read_generation
from tfexport.runtime import Hypothesis, Translator
from tfexport.runtime.resolve import with_own

transformers = pytest.importorskip("transformers", reason="make optional installs it")
pytestmark = [pytest.mark.peers, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

DRAWN = int(os.environ.get("DRAWN_SETTINGS", "250"))  # a family
FEW, PREFIXES = 12, 20
FOLDERS = int(os.environ.get("DRAWN_FOLDERS", "1"))  # a family, each exported by itself
LEAST = -1e5  # score; what transformers fills up with, where beams find too few, is far below it
TOLERANCE = 1e-4  # of scores, relative to max(1, |score|)
FAMILIES = os.environ.get("GENERATION_FAMILIES", "marian bart").split()
# Options that a caller gives to be rid of what a bundle has.
NOTHING: dict[str, Any] = {
    "suppress_tokens": [], "first_token": None, "last_token": None, "beam_size": 1,
}  # fmt: skip


# From 512 words on some instruction sets of the native engine rank them by integers.
LARGE, SIZE, SHARE = " large", 613, 4  # a name's end, words, every so many of the settings


def likely_end(model: Any, more: float = 2.0) -> Any:
    """The model, which ends rows more often."""
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias[0, model.config.eos_token_id] += more
    return model


def model_of(name: str) -> Any:
    """A model of a family, of one layer and of many words where the name says so."""
    family = name.removesuffix(LARGE)
    if family == name:
        return likely_end(make_model(family, 3))
    ids = {"pad_token_id": SIZE - 1, "decoder_start_token_id": SIZE - 1}
    names = ("src_vocab_size", "tgt_vocab_size") if family == "fsmt" else ("vocab_size",)
    given: dict[str, Any] = dict.fromkeys(names, SIZE) | (ids if family == "marian" else {})
    return likely_end(make_model(family, 3, encoder_layers=1, **given), 4.0)


# The second family repeats the first one's path.
EACH = few_of(FAMILIES, FAMILIES[0])
OPENED = few_of([*FAMILIES, *(name + LARGE for name in FAMILIES)], FAMILIES[0])


@pytest.fixture(name="opened", scope="module", params=OPENED)
def _opened(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, Translator]:
    folder = tmp_path_factory.mktemp(request.param)
    model = model_of(request.param)
    save_folder(model, folder / "model")
    with pytest.MonkeyPatch.context() as patch:
        leave_out_graphs(patch, graph_io.STEP)
        export(folder / "model", folder / "model.bundle", verify=False)
    return model, Translator(folder / "model.bundle", threads=1)


def options_of(model: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings as options that a caller gives."""
    defaults = read_generation(model.config.to_dict(), settings).defaults
    return {**NOTHING, **with_own(defaults, {})}


def differs(ours: Hypothesis, theirs: Found) -> str | None:
    """How a hypothesis is another than theirs, and no better one; None if it is not."""
    far = 0.0
    # Theirs is nan where a forced token is the only one that is left to renormalise.
    if theirs.score is not None and not math.isnan(theirs.score):
        far = (ours.score - theirs.score) / max(1, abs(theirs.score))
    if ours.tokens == theirs.tokens and abs(far) < TOLERANCE:
        return None
    return f"{ours.tokens} {ours.score}, transformers {theirs.tokens} {theirs.score}"


@pytest.mark.parametrize("seeds", few_of([range(FEW), range(FEW, DRAWN)], range(FEW)), ids=str)
def test_all_settings_give_the_same_hypotheses(
    opened: tuple[Any, Translator], seeds: range
) -> None:
    """Of beams all of them, in their order."""
    model, translator = opened
    wrong, of_beams = [], 0
    for seed in seeds if vocab_size(model) < SIZE else seeds[::SHARE]:
        settings = {**own_ids(model), **draw_settings(seed, model)}
        rows, count = draw_rows(seed, model, 3), settings.get("num_beams", 1)
        options = {**options_of(model, settings), "num_hypotheses": count}
        for row, result in zip(rows, translator.generate(rows, **options), strict=True):
            expected = [
                theirs
                for theirs in generate_all(model, row, settings, count=count)
                if theirs.score is None or not theirs.score < LEAST
            ]
            of_beams += count > 1
            problems = [
                (theirs.score is not None and ours.score > theirs.score, problem)
                for ours, theirs in zip(result.hypotheses, expected, strict=True)
                if (problem := differs(ours, theirs))
            ]
            if problems:  # those behind a better one are one place further down
                wrong.append((problems[0][0], f"seed {seed} {settings}: {problems}"))
    assert [text for better, text in wrong if not better] == []
    assert len(wrong) <= 0.02 * of_beams


def test_a_prefix_counts_as_it_does_there(opened: tuple[Any, Translator]) -> None:
    model, translator = opened
    for seed in range(PREFIXES):
        settings = {**own_ids(model), **draw_settings(seed, model), "max_length": 14}
        settings.pop("max_new_tokens", None)
        # There a prefix that was given stands for the forced first token too.
        settings.pop("forced_bos_token_id", None)
        draw = random.Random(seed)
        (row,), prefix = draw_rows(seed, model, 1), draw.sample(range(5, 50), draw.randint(1, 3))
        ends = settings["eos_token_id"]
        if set(prefix) & {*(ends if isinstance(ends, list) else [ends])}:
            continue
        if draw.random() < 0.5 and "min_new_tokens" in settings:
            del settings["min_new_tokens"]
        elif "min_new_tokens" in settings:  # which counts behind the prefix there
            continue
        options = options_of(model, settings)
        (result,) = translator.generate([row], target_prefix=[prefix], **options)
        problem = differs(result.hypotheses[0], generate(model, row, settings, prefix))
        assert problem is None, f"seed {seed} {settings} {prefix}: {problem}"


@pytest.mark.usefixtures("few_shapes", "no_step_graph")
@pytest.mark.parametrize("family", EACH)
def test_a_folders_own_settings_are_kept_with_no_option_given(tmp_path: Path, family: str) -> None:
    for seed in range(FAMILIES.index(family), FAMILIES.index(family) + FOLDERS):
        longer: dict[str, Any] = (
            {"max_position_embeddings": 256} if family == "fsmt" else {}
        )  # its class has 200
        model = likely_end(make_model(family, 3 + seed, **longer))  # the first is traced already
        folder = save_folder(model, tmp_path / f"{seed}")
        settings = {**own_ids(model), **draw_settings(1000 + seed, model)}
        if seed % 2:  # an old folder
            (folder / "generation_config.json").unlink()
            ends = settings.pop("eos_token_id")
            change_json(folder / "config.json", **settings)
            settings["eos_token_id"] = ends[0] if isinstance(ends, list) else ends
        else:
            (folder / "generation_config.json").write_text(json.dumps(settings))
        export(folder, tmp_path / f"{seed}.bundle")
        loaded = type(model).from_pretrained(folder, attn_implementation="eager").eval()
        rows = draw_rows(seed, model, 3)
        found = Translator(tmp_path / f"{seed}.bundle", threads=1).generate(rows)
        for row, result in zip(rows, found, strict=True):
            problem = differs(result.hypotheses[0], generate(loaded, row, None))
            assert problem is None, f"seed {seed} {settings}: {problem}"


@pytest.mark.usefixtures("no_step_graph")
@pytest.mark.parametrize("kind", few_of(["MBartTokenizer", "MBart50Tokenizer"], "MBartTokenizer"))
def test_texts_of_models_that_are_told_languages(tmp_path: Path, kind: str) -> None:
    folder = model_file_folder(
        tmp_path / "model", "mbart", "sentencepiece.bpe.model", tokenizer_class=kind
    )
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    size = max(theirs.get_vocab().values()) + 1
    model = likely_end(make_model("mbart", 1, vocab_size=size))
    of_tokenizer = {path.name: path.read_bytes() for path in folder.iterdir()}
    save_folder(model, folder, num_beams=3, max_length=20)
    for name, content in of_tokenizer.items():
        if name != "config.json":
            (folder / name).write_bytes(content)
    export(folder, tmp_path / "model.bundle", verify=False)
    translator = Translator(tmp_path / "model.bundle", threads=1)
    told = translator.manifest.languages
    assert told is not None
    place = "forced_bos_token_id" if told.target_place == "first" else "decoder_start_token_id"
    theirs.src_lang = "de_DE"
    texts = ["hello world", "the second one is longer, and so on", "x"]
    found = translator.translate(texts, source_language="de_DE", target_language="fr_XX")
    for text, ours in zip(texts, found, strict=True):
        source = theirs(text)["input_ids"]
        assert ours.source_tokens == source
        settings = {**model.generation_config.to_dict(), place: told.ids["fr_XX"]}
        expected = generate(model, source, settings)
        assert differs(ours.hypotheses[0], expected) is None
        assert ours.text == theirs.decode(expected.tokens, skip_special_tokens=True)


def test_a_folder_that_cannot_be_honoured_is_refused(tmp_path: Path) -> None:
    folder = save_folder(make_model("bart"), tmp_path / "model")
    change_json(folder / "generation_config.json", penalty_alpha=0.6, top_k=4, num_beam_groups=2)
    with pytest.raises(ValueError, match="2 problems") as error:
        export(folder, tmp_path / "model.bundle")
    assert "penalty_alpha" in str(error.value)
    assert not (tmp_path / "model.bundle").exists()


def test_padding_that_m2m_100_writes_has_no_position(tmp_path: Path) -> None:
    model = make_model("m2m_100", 4)
    ours = load_checkpoint(save_folder(model, tmp_path / "model")).build().eval()
    source, written = torch.tensor([[5, 6, 7, 2]]), [2, 5, model.config.pad_token_id, 6, 7]
    keep = torch.ones_like(source)
    memory = model.get_encoder()(source, attention_mask=keep)
    _, cross = ours.encode(source, keep)
    cache, past = None, ours.decoder.empty_cache(memory.last_hidden_state)
    for token in written:
        ids = torch.tensor([[token]])
        theirs = model(
            encoder_outputs=memory, attention_mask=keep, decoder_input_ids=ids,
            past_key_values=cache, use_cache=True,
        )  # fmt: skip
        cache = theirs.past_key_values
        logits, past = ours.step(ids, past, cross, keep)
        torch.testing.assert_close(logits, theirs.logits, atol=1e-4, rtol=1e-4)
