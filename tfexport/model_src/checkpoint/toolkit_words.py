"""The vocabularies inside checkpoints of OpenNMT-py: lists of words, or fields of torchtext."""

from typing import Any

from tfexport.model_src.checkpoint.pickled import Call

_SPECIAL = {"unk_id": "<unk>", "pad_id": "<blank>", "bos_id": "<s>", "eos_id": "</s>"}
_DEEPEST = 8  # objects inside one another


def words_of(vocab: Any, side: str) -> list[Any]:
    """The words of one side, "src" or "tgt", in order of id; none if it has no such side.

    Version 3 has lists of words by side; version 2 has, by side, an object with ``fields``, whose
    first is the words', with a ``vocab`` with ``itos``; version 1 has a list of pairs instead.
    """
    if isinstance(vocab, list) and all(isinstance(it, tuple) and len(it) == 2 for it in vocab):
        value = next((item for key, item in vocab if key == side), None)
    else:
        value = vocab.get(side) if isinstance(vocab, dict) else None
    for _ in range(_DEEPEST):
        if not isinstance(value, Call):
            break
        value = _look_inside(value)
    return value if isinstance(value, list) else []


def _look_inside(value: Call) -> Any:
    state = value.state if isinstance(value.state, dict) else {}
    for name in ("itos", "vocab", "fields"):
        inside = state.get(name)
        if name == "fields" and isinstance(inside, list) and inside:
            inside = inside[0][1] if isinstance(inside[0], tuple) and len(inside[0]) > 1 else None
        if inside is not None:
            return inside
    return None


def special_ids(vocab: Any) -> dict[str, int]:
    """The ids of the target's special words, as config values."""
    words = words_of(vocab, "tgt")
    found = {key: words.index(word) for key, word in _SPECIAL.items() if word in words}
    start = vocab.get("decoder_start_token") if isinstance(vocab, dict) else None
    if isinstance(start, str) and start in words and words.index(start) != found.get("bos_id"):
        found["start_id"] = words.index(start)
    return found
