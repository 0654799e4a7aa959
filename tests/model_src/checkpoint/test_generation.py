"""How a Hugging Face folder says that its model decodes, as decoding options."""

from typing import Any

import pytest

from tfexport.errors import ConfigError
from tfexport.model_src.checkpoint.generation_config import read_generation

MARIAN = {
    "vocab_size": 58101, "eos_token_id": 0, "decoder_start_token_id": 58100, "num_beams": 6,
    "max_length": 512, "bad_words_ids": [[58100]], "forced_eos_token_id": 0,
    "max_position_embeddings": 512, "model_type": "marian", "normalize_before": False,
}  # fmt: skip
SIZE = {"vocab_size": 100, "eos_token_id": 2}
ALWAYS = {"search_rules": "transformers", "early_stopping": False, "max_length": 20}


def test_keys_of_config_json_count_where_there_is_no_other_file() -> None:
    found = read_generation(MARIAN, {})
    assert found.start_id == 58100
    assert found.defaults == {
        **ALWAYS, "beam_size": 6, "max_length": 511, "suppress_tokens": [58100], "last_token": 0,
    }  # fmt: skip
    other = read_generation(MARIAN, {"num_beams": 2, "decoder_start_token_id": 5})
    assert other.start_id == 5
    assert other.defaults == {**ALWAYS, "beam_size": 2}


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        # The start token counts there.
        ({"max_length": 20}, {"max_length": 19}),
        ({"max_new_tokens": 7}, {"max_length": 7}),
        ({"max_length": 200, "max_new_tokens": 7}, {"max_length": 7}),
        ({"min_length": 1}, {}),
        ({"min_length": 6}, {"min_length": 5}),
        ({"min_length": 6, "min_new_tokens": 2}, {"min_length": 2}),
        ({"min_length": 60, "max_length": 30}, {"min_length": 29, "max_length": 29}),
        ({"num_beams": 4, "early_stopping": True}, {"beam_size": 4, "early_stopping": True}),
        ({"num_beams": 4, "early_stopping": "never"}, {"beam_size": 4, "exhaustive": True}),
        ({"num_beams": 4, "num_return_sequences": 3}, {"beam_size": 4, "num_hypotheses": 3}),
        ({"length_penalty": 0.8, "renormalize_logits": True},
         {"length_penalty": 0.8, "renormalize_logits": True}),
        ({"no_repeat_ngram_size": 3, "encoder_no_repeat_ngram_size": 4, "repetition_penalty": 1.2},
         {"no_repeat_ngram_size": 3, "encoder_no_repeat_ngram_size": 4,
          "repetition_penalty": 1.2}),
        ({"bad_words_ids": [[9], [5, 6], [2], [7]], "eos_token_id": 2},
         {"suppress_tokens": [7, 9], "suppress_sequences": [[5, 6]]}),
        # A forced token wins over a bad word, not over a suppressed token.
        ({"bad_words_ids": [[9], [8]], "forced_bos_token_id": 9},
         {"first_token": 9, "suppress_tokens": [8], "suppress_sequences": [[9]]}),
        ({"suppress_tokens": [4, 3], "bad_words_ids": [[9]]}, {"suppress_tokens": [3, 4, 9]}),
        ({"begin_suppress_tokens": [4, 2]}, {"suppress_first_tokens": [2, 4]}),
        ({"forced_bos_token_id": 0, "forced_eos_token_id": [2]},
         {"first_token": 0, "last_token": 2}),
        ({"eos_token_id": [2, 5]}, {"end_tokens": [2, 5]}),
        ({"eos_token_id": 3}, {"end_tokens": [3]}),
        ({"do_sample": True}, {"sampling": True, "top_k": 50}),
        ({"do_sample": True, "top_k": 0, "top_p": 0.9, "temperature": 0.6},
         {"sampling": True, "top_p": 0.9, "temperature": 0.6}),
        ({"do_sample": False, "top_p": 0.9, "temperature": 0.0}, {"top_p": 0.9}),
        # Nothing is said by what is null, or is the default.
        ({"num_beams": None, "length_penalty": 1.0, "bad_words_ids": None, "top_p": 1.0}, {}),
        ({"num_beam_groups": 1, "diversity_penalty": 0.0, "guidance_scale": 1.0,
          "typical_p": 1.0, "encoder_repetition_penalty": 1.0, "forced_decoder_ids": None}, {}),
    ],
)  # fmt: skip
def test_keys_become_options(given: dict[str, Any], wanted: dict[str, Any]) -> None:
    found = read_generation(SIZE, {"transformers_version": "5.23.0", **given})
    assert found.defaults == {**ALWAYS, **wanted}
    assert not [note for note in found.notes if "name no longest output" not in note]


def test_it_says_where_the_longest_length_comes_from() -> None:
    def origin(*given: dict[str, Any]) -> str:
        return read_generation({**SIZE, **given[0]}, given[1]).origins["max_length"]

    assert origin({}, {}) == origin({}, {"num_beams": 4}) == "transformers"
    assert origin({"max_length": 60}, {"num_beams": 4}) == "transformers", "it does not count"
    assert origin({"max_length": 60}, {}) == "config.json"
    assert origin({}, {"max_new_tokens": 60}) == "generation_config.json"
    assert origin({}, {"max_length": None}) == "transformers"


def test_the_usual_limit_stays_within_the_model() -> None:
    found = read_generation({**SIZE, "max_position_embeddings": 12}, {})
    assert found.defaults["max_length"] == 11


def test_the_old_name_of_a_forced_first_token() -> None:
    old = {**SIZE, "bos_token_id": 7, "force_bos_token_to_be_generated": True}
    assert read_generation(old, {}).defaults["first_token"] == 7


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"penalty_alpha": 0.6, "top_k": 4}, "penalty_alpha: 0.6 is not supported"),
        ({"dola_layers": "high"}, "dola_layers: 'high' is not supported"),
        ({"num_beams": 4, "num_beam_groups": 2}, "num_beam_groups: 2 is not supported"),
        ({"diversity_penalty": 0.5}, "diversity_penalty: 0.5 is not supported"),
        ({"constraints": [1]}, "constraints: [1] is not supported"),
        ({"force_words_ids": [[4]]}, "force_words_ids: [[4]] is not supported"),
        ({"encoder_repetition_penalty": 1.5}, "encoder_repetition_penalty: 1.5 is not supported"),
        ({"exponential_decay_length_penalty": [5, 1.1]}, "exponential_decay_length_penalty"),
        ({"sequence_bias": [[[4], 2.0]]}, "sequence_bias: [[[4], 2.0]] is not supported"),
        ({"guidance_scale": 1.5}, "guidance_scale: 1.5 is not supported"),
        ({"stop_strings": ["."]}, "stop_strings: ['.'] is not supported"),
        ({"forced_decoder_ids": [[1, 4]]}, "forced_decoder_ids: [[1, 4]] is not supported"),
        ({"watermarking_config": {}}, "watermarking_config: {} is not supported"),
        ({"do_sample": True, "typical_p": 0.9}, "typical_p: 0.9 is not supported"),
        ({"do_sample": True, "min_p": 0.1}, "min_p: 0.1 is not supported"),
        ({"do_sample": True, "epsilon_cutoff": 3e-4}, "epsilon_cutoff: 0.0003 is not supported"),
        ({"do_sample": True, "num_beams": 4}, "num_beams: 4 with do_sample"),
        ({"a_new_key": 3}, "a_new_key: unknown key"),
        ({"num_beams": "4"}, "num_beams: '4' is not an integer from 1 to 1024"),
        ({"num_beams": True}, "num_beams: True is not an integer"),
        ({"max_length": 1}, "max_length: 1 is not an integer from 2"),
        ({"early_stopping": "often"}, "early_stopping: 'often' is not true, false or 'never'"),
        ({"length_penalty": 11}, "length_penalty: 11 is not a number from -10 to 10"),
        ({"repetition_penalty": float("nan")}, "repetition_penalty: nan is not a number"),
        ({"renormalize_logits": 1}, "renormalize_logits: 1 is not true or false"),
        ({"forced_bos_token_id": 100}, "forced_bos_token_id: 100 is not an id of the target"),
        ({"forced_eos_token_id": [2, 3]}, "forced_eos_token_id: [2, 3] is not an id"),
        ({"suppress_tokens": [-1]}, "suppress_tokens: [-1] is not a list of ids of the target"),
        ({"bad_words_ids": [3]}, "bad_words_ids: [3] is not a list of sequences"),
        ({"bad_words_ids": [[]]}, "bad_words_ids: [[]] is not a list of sequences"),
        ({"eos_token_id": "x"}, "eos_token_id: 'x' is not a list of ids"),
        ({"decoder_start_token_id": [1, 2]}, "decoder_start_token_id: [1, 2] is not an id"),
        ({"do_sample": True, "temperature": 0.0}, "temperature: 0.0 is not a number above 0"),
        ({"forced_eos_token_id": 2, "suppress_tokens": [2]}, "forced_eos_token_id: 2 is forced"),
        ({"num_return_sequences": 3}, "num_return_sequences: 3 exceeds num_beams"),
    ],
)
def test_whatever_cannot_be_honoured_is_refused_by_name(given: dict[str, Any], said: str) -> None:
    for config, file in ((SIZE, given), ({**SIZE, **given}, {})):
        if "a_new_key" in config:  # a config.json is full of other keys
            continue
        with pytest.raises(ConfigError) as error:
            read_generation(config, file)
        assert said in str(error.value)


def test_all_of_it_is_named_at_once() -> None:
    with pytest.raises(ConfigError, match=r"generation_config\.json: 3 problems") as error:
        read_generation(SIZE, {"penalty_alpha": 0.6, "max_length": "x", "unheard_of": 1})
    for part in ("penalty_alpha", "max_length", "unheard_of", "Remove the key"):
        assert part in str(error.value)


def test_keys_that_change_no_token_are_named() -> None:
    given = {"use_cache": False, "output_scores": True, "min_p": 0.1, "num_assistant_tokens": 5}
    note, _ = read_generation(SIZE, given).notes
    assert "min_p, num_assistant_tokens, output_scores, use_cache" in note


def test_settings_of_single_tasks_are_not_applied() -> None:
    tasks = {"translation_en_to_de": {"num_beams": 4}, "summarization": {}}
    found = read_generation({**SIZE, "task_specific_params": tasks}, {})
    assert "beam_size" not in found.defaults
    assert "translation_en_to_de, summarization" in found.notes[0]


@pytest.mark.parametrize(
    ("given", "most"), [({}, 20), ({"max_length": 30}, None), ({"max_new_tokens": 30}, None)]
)
def test_a_folder_that_names_no_length_is_noted(given: dict[str, int], most: int | None) -> None:
    found = read_generation(SIZE, {"num_beams": 2, **given})
    if most is None:
        assert found.notes == ()
        return
    (note,) = found.notes
    assert f"cut after {most} tokens" in note
    assert found.defaults["max_length"] == most
