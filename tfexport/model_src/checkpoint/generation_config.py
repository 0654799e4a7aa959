"""Generation defaults of a Hugging Face folder, as defaults of decoding options.

Source: GenerationConfig and GenerationMixin of transformers. Its lengths count the start token.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tfexport.errors import ConfigError, join_problems, shown
from tfexport.manifest import TRANSFORMERS
from tfexport.speech import Speech

# Source of the keys: GenerationConfig of transformers.


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
# Keys that change no token: what else is computed, kept and returned.
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

    def integer(self, key: str, least: int, most: int = _LONGEST) -> int | None:
        """An integer between two bounds."""
        value: Any = self.given.get(key)
        if _is_integer(value) and least <= value <= most:
            return int(value)
        self._bad(key, f"an integer from {least} to {most}")
        return None

    def number(self, key: str, low: float, high: float, *, above: bool = False) -> float | None:
        """A number between two bounds; excluding the lower one if ``above`` is true."""
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
        """A token id; None if it is missing."""
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
        return _is_integer(value) and 0 <= value < (self.vocab_size or _LONGEST)

    def _range(self) -> str:
        return "" if self.vocab_size is None else f" (0 to {self.vocab_size - 1})"

    def _bad(self, key: str, wanted: str) -> None:
        """A problem, if the key has a value."""
        if key in self.given:
            self.problems.append(f"{key}: {shown(self.given[key])} is not {wanted}")


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


CONFIG, GENERATION_FILE = "config.json", "generation_config.json"
DEFAULT_TOKENS = 20  # transformers' own limit, where a folder names none
# Values that are the decoding options' own defaults.
_OPTION_DEFAULTS: Mapping[str, Any] = {
    "beam_size": 1, "num_hypotheses": 1, "length_penalty": 1, "renormalize_logits": False,
    "min_length": 0, "no_repeat_ngram_size": 0, "encoder_no_repeat_ngram_size": 0,
    "repetition_penalty": 1, "sampling": False, "temperature": 1, "top_k": 0, "top_p": 1,
}  # fmt: skip
DEFAULT_TOP_K = 50  # of its sampling
REMEDY = (
    "A bundle decodes with the settings of its model's files, and no setting is ignored silently. "
    "Remove the key from the file if the model does not need it."
)


@dataclass(frozen=True)
class Generation:
    """A model's generation defaults.

    Attributes:
        defaults: decoding option to its default, as JSON values; the manifest's ``generation``.
        start_id: the token that decoding starts from; None if the files have none.
        notes: remarks for the user.
        origins: the origin of defaults, for the manifest; only of ``max_length``.
        speech: of a model that is decoded as Whisper is; else None.
    """

    defaults: Mapping[str, Any] = field(default_factory=dict)
    start_id: int | None = None
    notes: tuple[str, ...] = ()
    origins: Mapping[str, str] = field(default_factory=dict)
    speech: Speech | None = None


def read_generation(config: Mapping[str, Any], generation: Mapping[str, Any]) -> Generation:
    """Read the generation defaults of a Hugging Face folder.

    Args:
        config: values of config.json. Its keys about generation count if there is no
            generation_config.json; those of the model's size always do.
        generation: values of generation_config.json; empty if there is none.

    Raises:
        ConfigError: keys are not supported, or values are invalid; all are listed.
    """
    values = generation or _of_model(config)
    given = {key: value for key, value in values.items() if value is not None}
    read = Values(given, _target_size(config))
    problems = [*_refused(given, generation)]
    defaults = _defaults(read, config)
    start = read.token("decoder_start_token_id")
    problems += [*read.problems, *_contradictions(defaults)]
    if problems:
        name = GENERATION_FILE if generation else f"{CONFIG}, on generation"
        raise ConfigError(join_problems(name, problems, REMEDY))
    notes = [*_notes(given), *_task_notes(config, generation), *_length_note(given, defaults)]
    start = start if start is not None else read.token("bos_token_id")
    origin = TRANSFORMERS if _has_no_length(given) else GENERATION_FILE if generation else CONFIG
    return Generation(defaults, start, tuple(notes), {"max_length": origin})


def _of_model(config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys about generation of a config.json."""
    found = {key: config[key] for key in KNOWN if key in config}
    if config.get("force_bos_token_to_be_generated") is True:  # an old name
        found["forced_bos_token_id"] = config.get("bos_token_id")
    return found


def _target_size(config: Mapping[str, Any]) -> int | None:
    """Ids of the target vocabulary."""
    for key in ("decoder_vocab_size", "tgt_vocab_size", "vocab_size"):
        size = config.get(key)
        if isinstance(size, int) and not isinstance(size, bool):
            return size
    return None


def _refused(given: Mapping[str, Any], generation: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for every key that changes tokens and that this project cannot honour."""
    for key, value in given.items():
        if key in NOT_SUPPORTED and value not in NOT_SUPPORTED[key].neutral:
            yield f"{key}: {shown(value)} is not supported: {NOT_SUPPORTED[key].reason}"
        elif key in OF_SAMPLING and given.get("do_sample") is True:
            if value not in OF_SAMPLING[key]:
                yield f"{key}: {shown(value)} is not supported: there is no such limit for sampling"
        elif key not in KNOWN:
            yield f"{shown(key)[1:-1]}: unknown key"
    if given.get("do_sample") is True and given.get("num_beams", 1) != 1:
        yield f"num_beams: {shown(given['num_beams'])} with do_sample: beams are not sampled"


def _defaults(read: Values, config: Mapping[str, Any]) -> dict[str, Any]:
    """Decoding options by name, without those that equal the option's default."""
    defaults: dict[str, Any] = {"search_rules": "transformers", "early_stopping": False}
    stopping = read.given.get("early_stopping", False)
    if stopping == "never":
        defaults["exhaustive"] = True
    elif isinstance(stopping, bool):
        defaults["early_stopping"] = stopping
    else:
        read.problems.append(f"early_stopping: {shown(stopping)} is not true, false or 'never'")
    found = {
        "beam_size": read.integer("num_beams", 1, 1024),
        "num_hypotheses": read.integer("num_return_sequences", 1, 1024),
        "length_penalty": read.number("length_penalty", -10, 10),
        "renormalize_logits": read.flag("renormalize_logits"),
        **_lengths(read, config),
        "no_repeat_ngram_size": read.integer("no_repeat_ngram_size", 0),
        "encoder_no_repeat_ngram_size": read.integer("encoder_no_repeat_ngram_size", 0),
        "repetition_penalty": read.number("repetition_penalty", 1e-3, 1e3),
        **_tokens(read, config),
        **_sampling(read),
    }
    return defaults | {
        name: value
        for name, value in found.items()
        if value is not None and value != _OPTION_DEFAULTS.get(name, [])
    }


def _lengths(read: Values, config: Mapping[str, Any]) -> dict[str, int | None]:
    """Most and fewest tokens, the start token not counted."""
    longest, new = read.integer("max_length", 2), read.integer("max_new_tokens", 1)
    if new is not None:
        most = new
    elif longest is not None:
        most = longest - 1
    else:
        table = config.get("max_position_embeddings")
        integer = isinstance(table, int) and not isinstance(table, bool) and table > 1
        most = min(DEFAULT_TOKENS, table - 1) if integer and table else DEFAULT_TOKENS
    shortest, new = read.integer("min_length", 0), read.integer("min_new_tokens", 0)
    least = new if new is not None else max(0, (shortest or 0) - 1)
    # Beyond the limit the end token is never allowed, whatever the number.
    return {"max_length": most, "min_length": min(least, most)}


def _tokens(read: Values, config: Mapping[str, Any]) -> dict[str, Any]:
    """Forced, suppressed and end tokens."""
    ends, own = read.tokens_or_one("eos_token_id"), config.get("eos_token_id")
    first = read.one_token("forced_bos_token_id")
    last = read.one_token("forced_eos_token_id")
    banned = [
        words for words in read.sequences("bad_words_ids") if words not in [[e] for e in ends]
    ]
    # A forced token wins over a banned word, not over a suppressed token.
    single = [words[0] for words in banned if len(words) == 1 and words[0] not in (first, last)]
    others = [words for words in banned if len(words) > 1 or words[0] in (first, last)]
    return {
        "first_token": first,
        "last_token": last,
        "suppress_tokens": sorted({*single, *read.tokens("suppress_tokens")}),
        "suppress_first_tokens": sorted({*read.tokens("begin_suppress_tokens")}),
        "suppress_sequences": others,
        "end_tokens": [] if ends in (own, [own]) else ends,
    }


def _sampling(read: Values) -> dict[str, Any]:
    """Sampling; its settings act where a caller asks for it, too."""
    sampling = read.flag("do_sample")
    if not sampling:  # then these were not read, so invalid values do not matter
        read = Values(read.given, None)
    top_k = read.integer("top_k", 0)
    return {
        "sampling": sampling,
        "temperature": read.number("temperature", 0, 1e6, above=True),
        "top_k": DEFAULT_TOP_K if sampling and top_k is None else top_k,
        "top_p": read.number("top_p", 0, 1),
    }


def _contradictions(defaults: Mapping[str, Any]) -> Iterator[str]:
    """Settings of which the one makes the other impossible."""
    suppressed = {*defaults.get("suppress_tokens", ())}
    for name, key in (
        ("first_token", "forced_bos_token_id"),
        ("last_token", "forced_eos_token_id"),
    ):
        if defaults.get(name) in suppressed:
            yield f"{key}: {defaults[name]} is forced, but also in suppress_tokens"
    count, beam = defaults.get("num_hypotheses", 1), defaults.get("beam_size", 1)
    if count > beam and not defaults.get("sampling"):
        yield f"num_return_sequences: {count} exceeds num_beams, which is {beam}"


def _notes(given: Mapping[str, Any]) -> Iterator[str]:
    """Remarks on keys that are left out because they change no token."""
    of_sampling = [
        key for key in OF_SAMPLING if key in given and given[key] not in OF_SAMPLING[key]
    ]
    left_out = sorted({key for key in given if key in CHANGE_NOTHING} | {*of_sampling})
    if left_out:
        yield f"generation settings that change no token are ignored: {', '.join(left_out)}"


def _length_note(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> Iterator[str]:
    """A remark where the files name no longest output, of which transformers warns too."""
    if _has_no_length(given):
        yield (
            f"the model's files name no longest output: it is cut after {defaults['max_length']} "
            "tokens, which is transformers' default, unless max_length is given when decoding, or "
            f"max_new_tokens in {GENERATION_FILE}"
        )


def _has_no_length(given: Mapping[str, Any]) -> bool:
    return "max_length" not in given and "max_new_tokens" not in given


def _task_notes(config: Mapping[str, Any], generation: Mapping[str, Any]) -> Iterator[str]:
    """A remark on settings for single tasks, which transformers' ``generate`` does not apply."""
    tasks = generation.get("task_specific_params", config.get("task_specific_params"))
    if isinstance(tasks, Mapping) and tasks:
        yield (
            f"task_specific_params ({', '.join(map(str, tasks))}) are not applied, nor does "
            "transformers' generate; give them as options"
        )
