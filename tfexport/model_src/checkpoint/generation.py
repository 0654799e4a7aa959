"""How a Hugging Face folder says that its model decodes, as defaults of decoding options.

Source: GenerationConfig and GenerationMixin of transformers. Its lengths count the start token.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tfexport.errors import ConfigError, join_problems, shown
from tfexport.manifest import TRANSFORMERS
from tfexport.model_src.checkpoint.generation_keys import (
    CHANGE_NOTHING,
    KNOWN,
    NOT_SUPPORTED,
    OF_SAMPLING,
    Values,
)

CONFIG, GENERATION_FILE = "config.json", "generation_config.json"
DEFAULT_TOKENS = 20  # transformers' own limit, where a folder names none
# Values that are the decoding options' own defaults.
_UNSAID: Mapping[str, Any] = {
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
    """How a model's files say that it decodes.

    Attributes:
        defaults: decoding option to its default, as JSON values; the manifest's ``generation``.
        start_id: the token that decoding starts from; None if the files do not say it.
        notes: remarks for the user.
        origins: default to where it comes from, for the manifest; of ``max_length`` alone.
    """

    defaults: Mapping[str, Any] = field(default_factory=dict)
    start_id: int | None = None
    notes: tuple[str, ...] = ()
    origins: Mapping[str, str] = field(default_factory=dict)


def read_generation(config: Mapping[str, Any], generation: Mapping[str, Any]) -> Generation:
    """Read how a Hugging Face folder says that its model decodes.

    Args:
        config: values of config.json. Its keys about generation count if there is no
            generation_config.json; those of the model's size always do.
        generation: values of generation_config.json; empty if there is none.

    Raises:
        ConfigError: naming every key that cannot be honoured, and every bad value.
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
    origin = TRANSFORMERS if _length_unsaid(given) else GENERATION_FILE if generation else CONFIG
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
                yield f"{key}: {shown(value)} is not supported: sampling here has no such limit"
        elif key not in KNOWN:
            yield f"{shown(key)[1:-1]}: not a key of generation that is known"
    if given.get("do_sample") is True and given.get("num_beams", 1) != 1:
        yield f"num_beams: {shown(given['num_beams'])} with do_sample: a beam is not sampled here"


def _defaults(read: Values, config: Mapping[str, Any]) -> dict[str, Any]:
    """Decoding options by name; what a default would change nothing is left out."""
    defaults: dict[str, Any] = {"search_rules": "transformers", "early_stopping": False}
    stopping = read.given.get("early_stopping", False)
    if stopping == "never":
        defaults["exhaustive"] = True
    elif isinstance(stopping, bool):
        defaults["early_stopping"] = stopping
    else:
        read.problems.append(f"early_stopping: {shown(stopping)} is not true, false or 'never'")
    found = {
        "beam_size": read.whole("num_beams", 1, 1024),
        "num_hypotheses": read.whole("num_return_sequences", 1, 1024),
        "length_penalty": read.number("length_penalty", -10, 10),
        "renormalize_logits": read.flag("renormalize_logits"),
        **_lengths(read, config),
        "no_repeat_ngram_size": read.whole("no_repeat_ngram_size", 0),
        "encoder_no_repeat_ngram_size": read.whole("encoder_no_repeat_ngram_size", 0),
        "repetition_penalty": read.number("repetition_penalty", 1e-3, 1e3),
        **_tokens(read, config),
        **_sampling(read),
    }
    return defaults | {
        name: value
        for name, value in found.items()
        if value is not None and value != _UNSAID.get(name, [])
    }


def _lengths(read: Values, config: Mapping[str, Any]) -> dict[str, int | None]:
    """Most and fewest tokens, the start token not counted."""
    longest, new = read.whole("max_length", 2), read.whole("max_new_tokens", 1)
    if new is not None:
        most = new
    elif longest is not None:
        most = longest - 1
    else:
        table = config.get("max_position_embeddings")
        whole = isinstance(table, int) and not isinstance(table, bool) and table > 1
        most = min(DEFAULT_TOKENS, table - 1) if whole and table else DEFAULT_TOKENS
    shortest, new = read.whole("min_length", 0), read.whole("min_new_tokens", 0)
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
    if not sampling:  # then nothing has read these, so that a value that is none is passed over
        read = Values(read.given, None)
    top_k = read.whole("top_k", 0)
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
            yield f"{key}: {defaults[name]} is forced, and one of suppress_tokens"
    count, beam = defaults.get("num_hypotheses", 1), defaults.get("beam_size", 1)
    if count > beam and not defaults.get("sampling"):
        yield f"num_return_sequences: {count} is more than num_beams, which is {beam}"


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
    if _length_unsaid(given):
        yield (
            f"the model's files name no longest output: it is cut after {defaults['max_length']} "
            "tokens, which is transformers' default, unless max_length is given when decoding, or "
            f"max_new_tokens in {GENERATION_FILE}"
        )


def _length_unsaid(given: Mapping[str, Any]) -> bool:
    return "max_length" not in given and "max_new_tokens" not in given


def _task_notes(config: Mapping[str, Any], generation: Mapping[str, Any]) -> Iterator[str]:
    """A remark on settings for single tasks, which transformers' ``generate`` does not apply."""
    tasks = generation.get("task_specific_params", config.get("task_specific_params"))
    if isinstance(tasks, Mapping) and tasks:
        yield (
            f"task_specific_params ({', '.join(map(str, tasks))}) are not applied, nor does "
            "transformers' generate; give them as options"
        )
