"""The settings of Whisper's own way of decoding, in the files of a folder of transformers."""

from collections.abc import Iterator, Mapping
from typing import Any

from tfexport.errors import ConfigError, join_problems, shown
from tfexport.model_src.checkpoint.generation_config import GENERATION_FILE, REMEDY, Values
from tfexport.speech import TASKS, Speech, language_code

_FROM_CONFIG = "_from_model_config"  # without keys that its GenerationConfig does not declare
_NO_TIMESTAMPS = "no_timestamps_token_id"
_FORCED = "forced_decoder_ids"
# Keys of Whisper's generation_config.json that its own ``generate`` reads.
_OF_PREFIX = (
    "lang_to_id", "task_to_id", "language", "task", "is_multilingual", _FORCED,
)  # fmt: skip
_OF_WINDOWS = (
    "max_initial_timestamp_index", "alignment_heads", "median_filter_width", "prev_sot_token_id",
    "return_timestamps", "return_segments", "compression_ratio_threshold", "logprob_threshold",
    "no_speech_threshold", "condition_on_prev_tokens", "prompt_condition_type",
)  # fmt: skip


def without_prefix(
    generation: Mapping[str, Any], config: Mapping[str, Any]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The generation settings without those that only Whisper's own ``generate`` reads.

    Args:
        generation: values of generation_config.json, none of them null.
        config: values of config.json.

    Returns:
        The other settings, with a first token for a model of English alone; and a remark on the
        tokens that ``generate`` puts in front of a row, which are left to the caller.
    """
    if config.get("model_type") != "whisper":
        return {**generation}, ()
    kept = {
        key: value
        for key, value in generation.items()
        if key not in (_NO_TIMESTAMPS, *_OF_PREFIX, *_OF_WINDOWS)
    }
    read = _as_read(generation)
    last, languages, tasks = _last(read), read.get("lang_to_id"), read.get("task_to_id")
    fixed = _forced(read, config)
    if fixed and None not in fixed:
        prefix = [*fixed, *([last] if last not in (None, fixed[-1]) else [])]
        if prefix == [last]:
            return {**kept, "forced_bos_token_id": last}, ()
        return kept, (
            f"transformers' generate starts a row with {prefix}, of {_FORCED}: generate_from takes "
            "them as target_prefix",
        )
    if not languages or not isinstance(languages, Mapping):
        return kept if last is None else {**kept, "forced_bos_token_id": last}, ()
    code, number = next(iter(languages.items()))
    task = next(iter(tasks.values())) if isinstance(tasks, Mapping) and tasks else None
    prefix = [each for each in (number, task, last) if each is not None]
    return kept, (
        "transformers' generate starts a row with tokens for its language, which it detects, its "
        "task and no timestamps: so does transcribe; generate_from takes them as target_prefix, "
        f"such as {prefix} for {code}",
    )


def _as_read(generation: Mapping[str, Any]) -> Mapping[str, Any]:
    """The values of Whisper's own keys that transformers reads of generation_config.json."""
    return {} if generation.get(_FROM_CONFIG) else generation


def _last(generation: Mapping[str, Any]) -> int | None:
    """The id of the token for no timestamps, if there is one."""
    value = generation.get(_NO_TIMESTAMPS)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _forced(generation: Mapping[str, Any], config: Mapping[str, Any]) -> list[int | None]:
    """The tokens after the start token that the files fix; a null is a language to be detected.

    Older files have them in place of a language and a task, also in config.json alone.
    """
    if not {"language", "task"}.isdisjoint(generation):
        return []
    pairs = generation.get(_FORCED, config.get(_FORCED))
    if not isinstance(pairs, list) or not all(
        isinstance(pair, list) and len(pair) == 2 and (pair[1] is None or type(pair[1]) is int)
        for pair in pairs
    ):
        return []
    return [pair[1] for pair in pairs] if [pair[0] for pair in pairs] == [
        *range(1, 1 + len(pairs))
    ] else []  # fmt: skip


def read_speech(
    config: Mapping[str, Any], generation: Mapping[str, Any], eos: int, longest: int
) -> tuple[Speech | None, tuple[str, ...]]:
    """Read what decoding sounds as Whisper's ``generate`` does has to know.

    Args:
        config: values of config.json.
        generation: values of generation_config.json.
        eos: the end token.
        longest: the most tokens of a row.

    Returns:
        None for another model, or one whose files do not say enough; then with a remark.

    Raises:
        ConfigError: values are invalid; all are listed.
    """
    given = {key: value for key, value in generation.items() if value is not None}
    if config.get("model_type") != "whisper":
        return None, ()
    reasons = [*_reasons(_as_read(given), config, eos)]
    if given.get(_FROM_CONFIG) and _NO_TIMESTAMPS in given:
        reasons = [f"{_FROM_CONFIG} is true, so that transformers does not read {_NO_TIMESTAMPS}"]
    if reasons:
        return None, (f"{GENERATION_FILE}: no transcribe: {'; '.join(reasons)}",)
    read = Values(given, config.get("vocab_size"))
    languages, tasks = _ids(read, "lang_to_id"), _ids(read, "task_to_id")
    language = given.get("language", _fixed_language(given, config))
    suppressed = read.tokens("suppress_tokens")
    previous = read.token("prev_sot_token_id")
    if previous is None and len(suppressed) > 1:
        previous = suppressed[-2]  # so transformers finds it
    positions = config.get("max_target_positions", longest)
    speech = Speech(
        no_timestamps=read.token(_NO_TIMESTAMPS) or 0,
        positions=min(positions, longest),
        languages={language_code(code): number for code, number in languages.items()},
        tasks={task: number for task, number in tasks.items() if task in TASKS},
        language=language_code(language) if isinstance(language, str) else None,
        task=given.get("task", "transcribe"),
        previous=previous,
        most_initial=read.integer("max_initial_timestamp_index", 0),
        max_new_tokens=read.integer("max_new_tokens", 1),
        condition_on_previous=read.flag("condition_on_prev_tokens"),
        compression_ratio_threshold=read.number("compression_ratio_threshold", 0, 1e6),
        logprob_threshold=read.number("logprob_threshold", -1e6, 0),
        no_speech_threshold=read.number("no_speech_threshold", 0, 1),
        alignment_heads=_heads(read, config),
        median_filter_width=config.get("median_filter_width", 7),
    )
    if read.problems:
        raise ConfigError(join_problems(GENERATION_FILE, read.problems, REMEDY))
    return speech, ()


def _reasons(given: Mapping[str, Any], config: Mapping[str, Any], eos: int) -> Iterator[str]:
    """Why sounds cannot be decoded as transformers' ``generate`` of the folder does it."""
    last, languages = _last(given), given.get("lang_to_id")
    if last is None:
        there = given.get(_NO_TIMESTAMPS)
        what = "is missing" if there is None else f"is {shown(there)}, which is no id"
        yield f"{_NO_TIMESTAMPS} {what}"
        return
    if not 0 < eos <= last:
        yield f"the end token {eos} is not between text and timestamps, which begin at {last + 1}"
    multilingual = given.get("is_multilingual", bool(languages))
    if bool(multilingual) != bool(languages):
        yield f"is_multilingual: {shown(multilingual)} contradicts lang_to_id"
    if languages and {*given.get("task_to_id", ())} < {*TASKS}:
        yield f"task_to_id does not name {' and '.join(TASKS)}"
    forced = given.get(_FORCED, config.get(_FORCED)) or []
    if not languages and forced not in ([], [[1, last]]):
        yield f"{_FORCED}: {shown(forced)} is not [[1, {last}]]"
    if languages and forced and {"language", "task"}.isdisjoint(given):
        yield from _wrong_prefix(given, config)
    if given.get("task", "transcribe") not in TASKS:
        yield f"task: {shown(given['task'])} is not one of {', '.join(TASKS)}"
    if not isinstance(given.get("language", ""), str):
        yield f"language: {shown(given['language'])} is not a language"
    ends = given.get("eos_token_id", eos)
    if ends not in (eos, [eos]):
        yield f"eos_token_id: {shown(ends)} are several end tokens"


def _wrong_prefix(given: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[str]:
    """Why the tokens that the files force are not those of a language and of transcribing."""
    forced = _forced(given, config)
    first, others = forced[:1], [each for each in forced[1:] if each != _last(given)]
    languages, tasks = given["lang_to_id"], given.get("task_to_id")
    if not isinstance(languages, Mapping) or not isinstance(tasks, Mapping):
        return  # which has its own reason
    of_language = first and (first[0] is None or first[0] in languages.values())
    if not of_language or others != [tasks.get("transcribe")]:
        value = given.get(_FORCED, config.get(_FORCED))
        yield (
            f"{_FORCED}: {shown(value)} is not a language (or null) at 1 and the task of "
            "transcribing at 2"
        )


def _fixed_language(given: Mapping[str, Any], config: Mapping[str, Any]) -> str | None:
    """The language whose token the files force, if any."""
    first = next(iter(_forced(given, config)), None)
    languages = given.get("lang_to_id") or {}
    return next((code for code, number in languages.items() if number == first), None)


def _ids(read: Values, key: str) -> dict[str, int]:
    """A table of ids; empty if it is missing."""
    table = read.given.get(key, {})
    if not isinstance(table, Mapping):
        read.problems.append(f"{key}: {shown(table)} is not an object of ids")
        return {}
    row = Values(table, read.vocab_size)
    found = {name: row.token(name) for name in table}
    read.problems += [f"{key}.{problem}" for problem in row.problems]
    return {str(name): number for name, number in found.items() if number is not None}


def _heads(read: Values, config: Mapping[str, Any]) -> list[list[int]] | None:
    """Pairs of layer and head."""
    heads = read.given.get("alignment_heads")
    if heads is None:
        return None
    if not isinstance(heads, list) or not all(
        isinstance(pair, list) and len(pair) == 2 and all(type(each) is int for each in pair)
        for pair in heads
    ):
        read.problems.append(f"alignment_heads: {shown(heads)} are not pairs of layer and head")
        return None
    sizes = [config.get(key) for key in ("decoder_layers", "decoder_attention_heads")]
    for pair in heads:
        if any(not 0 <= each < (size or each + 1) for each, size in zip(pair, sizes, strict=True)):
            read.problems.append(
                f"alignment_heads: {pair} is not in a decoder of {sizes[0]} layers with "
                f"{sizes[1]} heads"
            )
    return heads
