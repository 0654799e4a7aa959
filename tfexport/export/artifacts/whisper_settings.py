"""The settings of Whisper's own way of decoding, in the files of a folder of transformers."""

from collections.abc import Iterator, Mapping
from typing import Any

from tfexport.errors import ConfigError, join_problems, shown
from tfexport.model_src.checkpoint.generation_config import GENERATION_FILE, REMEDY, Values
from tfexport.speech import TASKS, Speech, language_code

_FROM_CONFIG = "_from_model_config"  # without keys that its GenerationConfig does not declare
_NO_TIMESTAMPS = "no_timestamps_token_id"
# Keys of Whisper's generation_config.json that its own ``generate`` reads.
_OF_PREFIX = (
    "lang_to_id", "task_to_id", "language", "task", "is_multilingual", "forced_decoder_ids",
)  # fmt: skip
_OF_WINDOWS = (
    "max_initial_timestamp_index", "alignment_heads", "median_filter_width", "prev_sot_token_id",
    "return_timestamps", "return_segments", "compression_ratio_threshold", "logprob_threshold",
    "no_speech_threshold", "condition_on_prev_tokens", "prompt_condition_type",
)  # fmt: skip


def without_prefix(given: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The generation settings of Whisper without those that its own ``generate`` reads."""
    last = given.get(_NO_TIMESTAMPS)
    if not isinstance(last, int):
        return {**given}, ()
    read = (_NO_TIMESTAMPS, *_OF_PREFIX, *_OF_WINDOWS)
    kept = {key: value for key, value in given.items() if key not in read}
    if given.get(_FROM_CONFIG):  # then transformers does not read them
        return kept, ()
    languages, tasks = given.get("lang_to_id"), given.get("task_to_id")
    if not languages or not isinstance(languages, Mapping):
        return {**kept, "forced_bos_token_id": last}, ()
    code, number = next(iter(languages.items()))
    task = next(iter(tasks.values())) if isinstance(tasks, Mapping) and tasks else None
    prefix = [each for each in (number, task, last) if each is not None]
    return kept, (
        "transformers' generate starts a row with tokens for its language, which it detects, its "
        "task and no timestamps: so does transcribe; generate_from takes them as target_prefix, "
        f"such as {prefix} for {code}",
    )


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
    if config.get("model_type") != "whisper" or given.get(_FROM_CONFIG):
        return None, ()
    reasons = [*_reasons(given, config, eos)]
    if reasons:
        return None, (f"{GENERATION_FILE}: no transcribe: {'; '.join(reasons)}",)
    read = Values(given, config.get("vocab_size"))
    languages, tasks = _ids(read, "lang_to_id"), _ids(read, "task_to_id")
    language = given.get("language")
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
    last, languages = given.get(_NO_TIMESTAMPS), given.get("lang_to_id")
    if not isinstance(last, int) or isinstance(last, bool):
        yield f"{_NO_TIMESTAMPS} is missing"
        return
    if not 0 < eos <= last:
        yield f"the end token {eos} is not between text and timestamps, which begin at {last + 1}"
    multilingual = given.get("is_multilingual", bool(languages))
    if bool(multilingual) != bool(languages):
        yield f"is_multilingual: {shown(multilingual)} contradicts lang_to_id"
    if languages and {*given.get("task_to_id", ())} < {*TASKS}:
        yield f"task_to_id does not name {' and '.join(TASKS)}"
    forced = given.get("forced_decoder_ids", config.get("forced_decoder_ids")) or []
    if not languages and forced not in ([], [[1, last]]):
        yield f"forced_decoder_ids: {shown(forced)} is not [[1, {last}]]"
    if given.get("task", "transcribe") not in TASKS:
        yield f"task: {shown(given['task'])} is not one of {', '.join(TASKS)}"
    if not isinstance(given.get("language", ""), str):
        yield f"language: {shown(given['language'])} is not a language"
    ends = given.get("eos_token_id", eos)
    if ends not in (eos, [eos]):
        yield f"eos_token_id: {shown(ends)} are several end tokens"


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
