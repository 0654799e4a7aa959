"""What is read of a folder of transformers, and what is refused, without exporting."""

import functools
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from tests.export.transformers_folders.families import FAMILIES, draw_inputs, make_model
from tests.support.combinations import few_of
from tests.support.hf_models import change_json, change_weights
from tfexport.cli.main import cli
from tfexport.errors import CheckpointError, ConfigError, MissingDependencyError, TfexportError
from tfexport.export import export
from tfexport.export.artifacts.transformers_call import TransformersModel
from tfexport.export.artifacts.transformers_source import find_transformers, read_transformers
from tfexport.export.artifacts.whisper_settings import read_speech, without_prefix
from tfexport.export.graphs.torch_layers import exportable_layers
from tfexport.module_rows import stack_rows

pytest.importorskip("transformers", reason="make optional installs it")
pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_model("bert2bert").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def read(folder: Any, **settings: Any) -> TransformersModel:
    values = find_transformers(folder, None)
    assert values is not None
    return read_transformers(folder, values, settings)


def refusal(folder: Path, **options: Any) -> str:
    with pytest.raises(TfexportError) as caught:
        export(folder, folder.with_name("out.bundle"), **options)
    assert isinstance(caught.value, CheckpointError | ConfigError)
    assert not folder.with_name("out.bundle").exists()
    return str(caught.value)


@pytest.mark.parametrize("family", ["led", "switch_transformers", "nllb-moe"])
def test_form_of_a_layer_is_equal(family: str) -> None:
    model = make_model(family)
    for row in draw_inputs(family, 4):
        given = {name: torch.from_numpy(array)[None] for name, array in row.items()}
        given["decoder_input_ids"] = torch.randint(5, 40, (1, 6))
        with torch.no_grad():
            own = model(**given, use_cache=False).logits
            with exportable_layers(model):
                form = model(**given, use_cache=False).logits
        assert not torch.equal(own, torch.zeros_like(own))
        torch.testing.assert_close(form, own, rtol=1e-4, atol=1e-4)


def test_form_of_padded_rows_is_equal() -> None:
    model = make_model("led")
    ids, mask = torch.randint(5, 40, (2, 21)), torch.ones(2, 21, dtype=torch.long)
    mask[1, 13:] = 0
    given = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": ids[:, :4]}
    with torch.no_grad():
        own = model(**given, use_cache=False).logits
        with exportable_layers(model):
            form = model(**given, use_cache=False).logits
    torch.testing.assert_close(form, own, rtol=1e-4, atol=1e-4)


def test_facts_of_a_folder(folder: Path) -> None:
    change_json(folder / "generation_config.json", num_beams=5, max_length=21)
    found = read(folder)
    ids, mask = found.inputs
    assert (ids.name, ids.below, mask.name) == ("input_ids", 48, "attention_mask")
    special = found.special
    assert (special.pad, special.eos, special.decoder_start) == (0, 4, 3)
    assert found.max_length == 40  # of the table of the decoder
    assert found.generation.defaults["beam_size"] == 5
    assert found.generation.defaults["max_length"] == 20  # the start token is not counted
    assert read(folder, max_length=11).generation.defaults["max_length"] == 11
    with pytest.raises(ConfigError, match=r"max_length=41.* is more than"):
        read(folder, max_length=41)


def test_model_in_memory_is_read_too() -> None:
    model = make_model("whisper")
    found = read(model)
    assert model.config.use_cache, "the model of the caller is left as it is"
    assert {id(each) for each in found.model.parameters()} == set(map(id, model.parameters()))
    assert [(each.name, tuple(each.axes)) for each in found.inputs] == [
        ("input_features", ("batch", 6, 24))
    ]
    assert found.max_length == 30
    assert found.folder is None


def test_layouts_and_single_stacks_are_read_as_before(tmp_path: Path) -> None:
    for values in ({"model_type": "bart"}, {"model_type": "gpt2"}, {"d_model": 16}):
        (tmp_path / "config.json").write_text(json.dumps(values))
        assert find_transformers(tmp_path, None) is None
    (tmp_path / "config.json").write_text('{"model_type": "led"}')
    assert find_transformers(tmp_path, None) is not None
    assert find_transformers(tmp_path, "bart") is None


def test_library_that_is_not_installed_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingDependencyError, match=r"the library transformers.*Install it with"):
        export(folder, folder.with_name("out.bundle"))


def test_weight_that_is_missing_is_named(folder: Path) -> None:
    name = "decoder.bert.encoder.layer.1.crossattention.self.key.weight"
    change_weights(folder, lambda state: state.pop(name))
    assert f"1 weights of EncoderDecoderModel are missing: {name}" in refusal(folder)


def test_weight_that_no_logits_need_may_be_missing(folder: Path) -> None:
    change_weights(folder, lambda state: state.pop("encoder.pooler.dense.weight"))
    assert read(folder).max_length == 40


def test_weight_without_a_place_is_told(folder: Path) -> None:
    change_weights(folder, lambda state: state.update(extra=torch.ones(2)))
    assert "EncoderDecoderModel has no place for extra" in read(folder).notes


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"model_type": "own-model"}, "has no model_type 'own-model'"),
        ({"architectures": ["OwnModel"]}, "has no class 'OwnModel'"),
        ({"architectures": ["BertLMHeadModel"]}, "holds a BertLMHeadModel, which has no encoder"),
        ({"quantization_config": {"bits": 4}}, "quantized weights are not read"),
    ],
)
def test_folder_of_another_kind_is_refused(folder: Path, values: dict[str, Any], said: str) -> None:
    change_json(folder / "config.json", **values)
    assert said in refusal(folder)


def test_weights_of_other_shapes_are_named(folder: Path) -> None:
    name = "encoder.embeddings.word_embeddings.weight"
    change_weights(folder, lambda state: state.update({name: torch.ones(50, 16)}))
    assert name in refusal(folder)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"guidance_scale": 2.0}, "guidance_scale: 2.0 is not supported"),
        ({"some_rule": 1}, "some_rule: unknown key"),
        ({"forced_decoder_ids": [[1, 7]]}, "forced_decoder_ids"),
        ({"suppress_tokens": [48]}, "suppress_tokens"),
        ({"eos_token_id": 48}, "eos_token_id"),
    ],
)
def test_rule_that_a_bundle_does_not_have_is_refused(
    folder: Path, values: dict[str, Any], said: str
) -> None:
    change_json(folder / "generation_config.json", **values)
    assert said in refusal(folder)


def test_block_that_is_found_by_rounding_is_refused(tmp_path: Path) -> None:
    make_model("longt5_global", global_block_size=3).save_pretrained(tmp_path / "model")
    assert "global_block_size 3 is not a power of two" in refusal(tmp_path / "model")


def test_n_grams_of_a_source_that_is_no_ids_are_refused(tmp_path: Path) -> None:
    make_model("whisper").save_pretrained(tmp_path / "model")
    path = tmp_path / "model" / "generation_config.json"
    change_json(path, encoder_no_repeat_ngram_size=3)
    assert "encoder_no_repeat_ngram_size is not supported" in refusal(tmp_path / "model")


def test_options_that_do_not_apply_are_named_at_once(folder: Path) -> None:
    message = refusal(
        folder, config={"d_model": 3}, settings=["num_heads=2"], output_attentions=True
    )
    for part in ("config", "num_heads", "output_attentions"):
        assert part in message
    assert "'forward' is not available" in refusal(folder, graph="forward")


def test_tokens_of_whisper_are_a_prefix(tmp_path: Path) -> None:
    make_model("whisper").save_pretrained(tmp_path / "model")
    path = tmp_path / "model" / "generation_config.json"
    change_json(path, no_timestamps_token_id=40, is_multilingual=False)
    assert json.loads(path.read_text())["_from_model_config"]  # so that transformers reads no more
    assert "first_token" not in read(tmp_path / "model").generation.defaults
    change_json(path, _from_model_config=False)
    assert read(tmp_path / "model").generation.defaults["first_token"] == 40
    change_json(path, lang_to_id={"<|en|>": 30}, task_to_id={"transcribe": 35})
    found = read(tmp_path / "model")
    assert "first_token" not in found.generation.defaults
    assert any("target_prefix, such as [30, 35, 40] for <|en|>" in note for note in found.notes)
    assert any("no transcribe: " in note and "task_to_id" in note for note in found.notes)
    change_json(path, task_to_id={"transcribe": 35, "translate": 36}, is_multilingual=True)
    change_json(path, alignment_heads=[[0, 1]], language="German")
    speech = read(tmp_path / "model").generation.speech
    assert speech is not None
    assert (speech.languages, speech.no_timestamps) == ({"en": 30}, 40)
    assert (speech.alignment_heads, speech.language) == ([[0, 1]], "de")
    heads = [[0, 1], [2, 0], [-1, 0]]
    change_json(path, lang_to_id={"<|en|>": 300}, no_speech_threshold=2, alignment_heads=heads)
    message = refusal(tmp_path / "model")
    assert "lang_to_id" in message
    assert "no_speech_threshold" in message
    assert "[2, 0] is not in a decoder of 2 layers with 4 heads" in message
    assert "[-1, 0] is not" in message


MULTILINGUAL = {
    "no_timestamps_token_id": 40, "is_multilingual": True, "return_timestamps": False,
    "lang_to_id": {"<|en|>": 30, "<|de|>": 31}, "alignment_heads": [[0, 1]],
    "task_to_id": {"transcribe": 35, "translate": 36}, "prev_sot_token_id": 37,
    "max_initial_timestamp_index": 50,
}  # fmt: skip
ENGLISH = {"no_timestamps_token_id": 40, "is_multilingual": False, "alignment_heads": [[0, 1]]}


def without(values: dict[str, Any], *keys: str, **more: Any) -> dict[str, Any]:
    return {key: it for key, it in values.items() if key not in keys} | more


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (without(MULTILINGUAL, "no_timestamps_token_id"), "no_timestamps_token_id is missing"),
        (without(ENGLISH, "no_timestamps_token_id"), "no_timestamps_token_id is missing"),
        (without(MULTILINGUAL, no_timestamps_token_id="40"), "is '40', which is no id"),
        (without(MULTILINGUAL, "lang_to_id"), "is_multilingual: True contradicts lang_to_id"),
        (without(MULTILINGUAL, "task_to_id"), "task_to_id does not name transcribe and translate"),
        (without(MULTILINGUAL, _from_model_config=True), "_from_model_config is true"),
        (without(MULTILINGUAL, forced_decoder_ids=[[1, 31], [2, 36]]), "the task of transcribing"),
        (without(MULTILINGUAL, forced_decoder_ids=[[2, 35]]), "the task of transcribing"),
        ({}, "no_timestamps_token_id is missing"),
        (without(MULTILINGUAL, "alignment_heads"), None),
        (without(MULTILINGUAL, forced_decoder_ids=[[1, None], [2, 35]]), None),
        (without(MULTILINGUAL, forced_decoder_ids=[[1, 31], [2, 35]]), None),
        (ENGLISH, None),
        (without(ENGLISH, "alignment_heads", "is_multilingual"), None),
    ],
)
def test_settings_of_whisper_that_say_too_little_are_left_out_with_a_note(
    values: dict[str, Any], reason: str | None
) -> None:
    config = {"model_type": "whisper", "vocab_size": 48}
    kept, _ = without_prefix(values, config)
    assert not {*kept} - {"_from_model_config", "forced_bos_token_id"}  # no key is unknown
    speech, notes = read_speech(config, values, 2, 30)
    assert (speech is None) is (reason is not None)
    assert all("generation_config.json: no transcribe: " in note for note in notes)
    assert reason is None or reason in notes[0]
    fixed = values.get("forced_decoder_ids", [[1, None]])[0][1]
    if speech is not None:
        assert speech.language == ("de" if fixed == 31 else None)


def test_keys_of_whisper_are_unknown_to_other_models() -> None:
    assert without_prefix(MULTILINGUAL, {"model_type": "moonshine"}) == (MULTILINGUAL, ())
    assert read_speech({"model_type": "moonshine"}, MULTILINGUAL, 2, 30) == (None, ())


def test_folder_of_whisper_without_settings_is_read_with_a_note(tmp_path: Path) -> None:
    make_model("whisper").save_pretrained(tmp_path / "model")
    path = tmp_path / "model" / "generation_config.json"
    change_json(path, _from_model_config=False, **without(MULTILINGUAL, "no_timestamps_token_id"))
    (note,) = (note for note in read(tmp_path / "model").notes if "no transcribe" in note)
    assert note == "generation_config.json: no transcribe: no_timestamps_token_id is missing"
    path.unlink()
    change_json(tmp_path / "model" / "config.json", forced_decoder_ids=[[1, 30], [2, 35], [3, 40]])
    found = read(tmp_path / "model")
    assert note in found.notes
    assert "first_token" not in found.generation.defaults
    assert any("with [30, 35, 40], of forced_decoder_ids" in each for each in found.notes)


@pytest.mark.parametrize(
    ("generation", "config"),
    [
        (without(MULTILINGUAL, forced_decoder_ids=[[1, 31], [2, 35]]), {}),
        (MULTILINGUAL, {"forced_decoder_ids": [[1, 31], [2, 35], [3, 40]]}),
        (without(MULTILINGUAL, "no_timestamps_token_id"), {"forced_decoder_ids": [[1, 31]]}),
        (without(MULTILINGUAL, forced_decoder_ids=[[1, 31], [2, 36]]), {}),
        (without(ENGLISH, forced_decoder_ids=[[1, 40]]), {}),
        (ENGLISH, {}),
        (without(ENGLISH, "no_timestamps_token_id"), {}),
        ({}, {"forced_decoder_ids": [[1, 30], [2, 35], [3, 40]]}),
    ],
)
def test_prefix_of_a_row_is_that_of_transformers(
    generation: dict[str, Any], config: dict[str, Any]
) -> None:
    model = make_model("whisper")
    for place, values in ((model.generation_config, generation), (model.config, config)):
        for key, value in values.items():
            setattr(place, key, value)
    model.generation_config.return_timestamps = False
    (wanted,) = model._retrieve_init_tokens(
        None, 1, model.generation_config, model.config, 24, {}
    ).tolist()  # fmt: skip
    kept, notes = without_prefix(generation, {"model_type": "whisper", **config})
    first = kept.get("forced_bos_token_id")
    said = [int(each) for each in re.findall(r"\d+", notes[0].partition("]")[0])] if notes else []
    assert [3, *([first] if first is not None else said)] == wanted


@torch.no_grad()
@pytest.mark.parametrize("family", few_of(FAMILIES, "bert2bert", "whisper"))
def test_an_encoder_runs_once_for_several_targets(family: str) -> None:
    found, calls = read(make_model(family)), list[int]()
    model: Any = found.model
    model.get_encoder().register_forward_hook(lambda *args: calls.append(1))
    rows = stack_rows([dict(draw_inputs(family, 1)[0])] * 2)
    given = [torch.from_numpy(rows[each.name]) for each in found.inputs]
    targets = [torch.tensor([[3, 5, 6], [3, 7, 8]])[:, :length] for length in (1, 2, 3)]
    forward = found.of_source(found.model, *given)
    made = [forward(target) for target in targets]
    assert len(calls) == 1
    for logits, target in zip(made, targets, strict=True):
        assert torch.equal(logits, found(found.model, *given, target))


@torch.no_grad()
def test_a_forward_that_needs_its_encoder_runs_it_each_time() -> None:
    model = make_model("bert2bert")
    own = type(model).forward

    class Other(type(model)):  # type: ignore[misc]
        @functools.wraps(own)
        def forward(self, *args: Any, **named: Any) -> Any:
            found = own(self, *args, **named)
            if "encoder_outputs" in named:
                found.logits = found.logits + 1
            return found

    model.__class__ = Other
    found = read(model)
    assert not found.encodes_once
    (row,), target = draw_inputs("bert2bert", 1), torch.tensor([[3, 5]])
    given = [torch.from_numpy(row[each.name])[None] for each in found.inputs]
    made = found.of_source(found.model, *given)(target)
    assert torch.equal(made, found(found.model, *given, target))


def test_folder_is_described(folder: Path) -> None:
    found = CliRunner().invoke(cli, ["inspect", str(folder), "--set", "max_length=17"])
    assert found.exit_code == 0
    for part in ("EncoderDecoderModel of transformers", "attention_mask int64", "17 target"):
        assert part in found.output
    as_json = CliRunner().invoke(cli, ["inspect", str(folder), "--json"])
    assert json.loads(as_json.output)["special_ids"]["start"] == 3
    refused = CliRunner().invoke(cli, ["inspect", str(folder), "--set", "d_model=17"])
    assert "--set d_model=17: only max_length can be set" in refused.output
    assert refused.exit_code == 2
