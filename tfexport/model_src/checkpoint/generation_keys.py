"""The keys of a Hugging Face generation_config.json, and checked reading of their values.

Source: GenerationConfig of transformers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tfexport.errors import shown


@dataclass(frozen=True)
class Refusal:
    """A key that cannot be honoured.

    Attributes:
        reason: the end of a sentence.
        neutral: values with which it changes nothing.
    """

    reason: str
    neutral: tuple[Any, ...] = ()


_MOVED = "it is code that runs in addition to the model"
_NO_BIAS = "no such change of logits is supported"

NOT_SUPPORTED = {
    "penalty_alpha": Refusal("there is no contrastive search", (0,)),
    "dola_layers": Refusal("layers cannot be contrasted"),
    "num_beam_groups": Refusal("its groups differ from those here", (1,)),
    "diversity_penalty": Refusal("its groups differ from those here", (0,)),
    "constraints": Refusal("there is no constrained search"),
    "force_words_ids": Refusal("there is no constrained search"),
    "encoder_repetition_penalty": Refusal(_NO_BIAS, (1,)),
    "exponential_decay_length_penalty": Refusal(_NO_BIAS),
    "sequence_bias": Refusal(_NO_BIAS, ({}, [])),
    "guidance_scale": Refusal("there is no guidance", (1,)),
    "token_healing": Refusal("there is no token healing", (False,)),
    "watermarking_config": Refusal("there are no watermarks"),
    "stop_strings": Refusal("rows end with tokens, not with strings", ([],)),
    "max_time": Refusal("results do not depend on the time"),
    "forced_decoder_ids": Refusal("only the first and the last token can be forced", ([],)),
    "assistant_ensemble_weight": Refusal(_MOVED),
    "custom_generate": Refusal(_MOVED),
}
# Keys of sampling that are not supported, with the values that change nothing.
OF_SAMPLING: Mapping[str, tuple[Any, ...]] = {
    "min_p": (0,), "top_h": (), "typical_p": (1,), "epsilon_cutoff": (0,), "eta_cutoff": (0,),
}  # fmt: skip
# Keys that change no token: what is computed, kept and returned beside them.
CHANGE_NOTHING = frozenset({
    "use_cache", "cache_implementation", "cache_config", "max_cache_len", "low_memory", "use_mtp",
    "remove_invalid_values", "output_attentions", "output_hidden_states", "output_scores",
    "output_logits", "return_dict_in_generate", "return_legacy_cache", "is_assistant",
    "num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold",
    "prompt_lookup_num_tokens", "max_matching_ngram_size", "assistant_early_exit",
    "assistant_lookbehind", "target_lookbehind", "speculation_type", "compile_config",
    "disable_compile", "continuous_batching_config", "prefill_chunk_size",
})  # fmt: skip
_HONOURED = frozenset({
    "max_length", "max_new_tokens", "min_length", "min_new_tokens", "early_stopping", "num_beams",
    "num_return_sequences", "length_penalty", "renormalize_logits", "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size", "repetition_penalty", "bad_words_ids", "suppress_tokens",
    "begin_suppress_tokens", "forced_bos_token_id", "forced_eos_token_id", "do_sample",
    "temperature", "top_k", "top_p", "eos_token_id", "bos_token_id", "decoder_start_token_id",
})  # fmt: skip
# Marks of the file itself, and ids that are the model's own.
_MARKS = frozenset({
    "_from_model_config", "_commit_hash", "transformers_version", "pad_token_id",
    "task_specific_params",
})  # fmt: skip
KNOWN = frozenset({*_HONOURED, *_MARKS, *CHANGE_NOTHING, *NOT_SUPPORTED, *OF_SAMPLING})
_LONGEST = 2**31 - 1


@dataclass
class Values:
    """Values of a file, each checked where it is read; one that is missing is None.

    Attributes:
        given: key to value, none of them null.
        vocab_size: ids of the target vocabulary, if it is known.
        problems: sentences on values that are not what their key takes.
    """

    given: Mapping[str, Any]
    vocab_size: int | None
    problems: list[str] = field(default_factory=list)

    def whole(self, key: str, least: int, most: int = _LONGEST) -> int | None:
        """An integer between two bounds."""
        value: Any = self.given.get(key)
        if _is_whole(value) and least <= value <= most:
            return int(value)
        self._bad(key, f"an integer from {least} to {most}")
        return None

    def number(self, key: str, low: float, high: float, *, above: bool = False) -> float | None:
        """A number between two bounds; not the lower one itself if it has to be ``above``."""
        value: Any = self.given.get(key)
        real = isinstance(value, int | float) and not isinstance(value, bool)
        if real and low <= value <= high and not (above and value == low):
            return float(value)
        self._bad(key, f"a number {'above' if above else 'from'} {low:g} to {high:g}")
        return None

    def flag(self, key: str) -> bool | None:
        """True or false."""
        value: Any = self.given.get(key)
        if isinstance(value, bool):
            return value
        self._bad(key, "true or false")
        return None

    def token(self, key: str) -> int | None:
        """One id."""
        value: Any = self.given.get(key)
        if self._is_id(value):
            return int(value)
        self._bad(key, f"an id of the target vocabulary{self._range()}")
        return None

    def one_token(self, key: str) -> int | None:
        """One id, or a list of one."""
        value: Any = self.given.get(key)
        if isinstance(value, list) and len(value) == 1 and self._is_id(value[0]):
            return int(value[0])
        return self.token(key)

    def tokens(self, key: str) -> list[int]:
        """A list of ids; empty if it is missing."""
        value = self.given.get(key, [])
        if isinstance(value, list) and all(map(self._is_id, value)):
            return value
        self._bad(key, f"a list of ids of the target vocabulary{self._range()}")
        return []

    def tokens_or_one(self, key: str) -> list[int]:
        """A list of ids, or one; empty if it is missing."""
        value: Any = self.given.get(key)
        return [int(self.given[key])] if self._is_id(value) else self.tokens(key)

    def sequences(self, key: str) -> list[list[int]]:
        """A list of lists of ids, none of them empty; empty if it is missing."""
        value = self.given.get(key, [])
        if isinstance(value, list) and all(
            isinstance(part, list) and part and all(map(self._is_id, part)) for part in value
        ):
            return value
        self._bad(key, f"a list of sequences of ids of the target vocabulary{self._range()}")
        return []

    def _is_id(self, value: Any) -> bool:
        return _is_whole(value) and 0 <= value < (self.vocab_size or _LONGEST)

    def _range(self) -> str:
        return "" if self.vocab_size is None else f" (0 to {self.vocab_size - 1})"

    def _bad(self, key: str, wanted: str) -> None:
        """A problem, if the key has a value."""
        if key in self.given:
            self.problems.append(f"{key}: {shown(self.given[key])} is not {wanted}")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
