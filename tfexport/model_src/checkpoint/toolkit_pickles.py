"""Checkpoints of fairseq, OpenNMT-py and JoeyNMT, which also hold Python objects.

The toolkits are not imported, and only the options of the objects are used.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfexport.errors import shown
from tfexport.model_src.checkpoint import pickle_checks
from tfexport.model_src.checkpoint.pickle_checks import read_tensors
from tfexport.model_src.checkpoint.pickle_files import Contents
from tfexport.model_src.checkpoint.pickle_parser import Call, DeclaredStorage, Global, PickleError
from tfexport.model_src.checkpoint.state_dict import StateDict, check_keys

# Vocabularies in checkpoints of OpenNMT-py: lists of words, or fields of torchtext.


_SPECIAL = {"unk_id": "<unk>", "pad_id": "<blank>", "bos_id": "<s>", "eos_id": "</s>"}
_DEEPEST_FIELDS = 8  # objects inside one another


def words_of(vocab: Any, side: str) -> list[Any]:
    """The words of one side, "src" or "tgt", in order of id; none if it has no such side.

    Version 3 has lists of words by side; version 2 has, by side, an object with ``fields``, whose
    first is the words', with a ``vocab`` with ``itos``; version 1 has a list of pairs instead.
    """
    if isinstance(vocab, list) and all(isinstance(it, tuple) and len(it) == 2 for it in vocab):
        value = next((item for key, item in vocab if key == side), None)
    else:
        value = vocab.get(side) if isinstance(vocab, dict) else None
    for _ in range(_DEEPEST_FIELDS):
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


# Plain values of the objects in a parsed pickle, in which a toolkit keeps its options. An
# ``argparse.Namespace`` becomes a dictionary of its attributes, a node of omegaconf its content, a
# member of an Enum its value. Any other object becomes the name of its class in angle brackets,
# which no option accepts.


_SCALARS = (str, int, float, bool, type(None))
_NAMESPACE = "argparse.Namespace"
_TOOLKITS = ("fairseq.", "onmt.")
_MOST_VALUES, _DEEPEST = 20_000, 16


def is_namespace(value: Any) -> bool:
    """Whether a value of a parsed pickle is an ``argparse.Namespace``."""
    return isinstance(value, Call) and value.path == _NAMESPACE


def plain_value(value: Any) -> Any:
    """A value of a parsed pickle as dictionaries with text as keys, lists and scalars.

    Raises:
        PickleError: there are more values than options have, or deeper ones.
    """
    return _Reader().read(value, 0)


class _Reader:
    def __init__(self) -> None:
        self.left = _MOST_VALUES

    def read(self, value: Any, depth: int) -> Any:
        self.left -= 1
        if self.left < 0 or depth > _DEEPEST:
            raise PickleError("its options hold more values than a toolkit's do")
        if isinstance(value, _SCALARS):
            return value
        if isinstance(value, dict):
            pairs = [(key, item) for key, item in value.items() if isinstance(key, str)]
            return {key: self.read(item, depth + 1) for key, item in pairs}
        if isinstance(value, list | tuple):
            return [self.read(item, depth + 1) for item in value]
        if isinstance(value, Call):
            return self._read_object(value, depth)
        return _name(value)

    def _read_object(self, value: Call, depth: int) -> Any:
        state = value.state if isinstance(value.state, dict) else {}
        if value.path == _NAMESPACE:
            return self.read(state, depth + 1)
        for content in ("_content", "_val"):  # of omegaconf's containers and leaves
            if content in state and value.path.startswith("omegaconf."):
                return self.read(state[content], depth + 1)
        alone = value.args[0] if isinstance(value.args, tuple) and len(value.args) == 1 else None
        enum = value.path.startswith(_TOOLKITS) and value.state is None
        if enum and isinstance(alone, str | int | float):
            return alone
        return _name(value)


def _name(value: Any) -> str:
    path = value.path if isinstance(value, Call | Global) else type(value).__name__
    path = value.kind if isinstance(value, DeclaredStorage) else path
    return f"<{shown(path)}>"


# What toolkits call the best checkpoint of a training: fairseq, JoeyNMT, Sockeye, Marian-NMT.
TOOLKIT_NAMES = ("checkpoint_best.pt", "best.ckpt", "params.best", "model.npz")
MODEL_TYPE = "model_type"
FAIRSEQ, OPENNMT_PY = "fairseq", "opennmt-py"
# Of a checkpoint of fairseq, besides "model" and "args" or "cfg".
_FAIRSEQ_KEYS = ("extra_state", "optimizer_history", "task_state", "last_optimizer_state")
_FAIRSEQ_WEIGHT = re.compile(r"(en|de)coder\.layers\.\d+\.(self_attn_layer_norm|layer_norms|fc1)\b")
_JOEY_WEIGHT = re.compile(r"\.(src_src|trg_trg)_att\.")


def read_toolkit(path: Path, contents: Contents) -> StateDict | None:
    """The weights and options of a toolkit's checkpoint; None for any other file.

    Raises:
        PickleError: damaged, or its sizes contradict the file's.
        CheckpointError: more keys than a model has.
        OSError: the file cannot be read.
    """
    value = contents.value
    if not isinstance(value, dict):
        return None
    if is_namespace(value.get("opt")) and "vocab" in value:
        return _read_opennmt(path, contents)
    if isinstance(model := value.get("model"), dict) and _is_fairseq(value, model):
        options = _fairseq_options(value)
        if options is None:
            return None
        return _state(path, contents, model, FAIRSEQ, {"args": options})
    model = value.get("model_state")
    if isinstance(model, dict) and any(_matches(_JOEY_WEIGHT, key) for key in model):
        return _state(path, contents, model)
    return None


def _matches(pattern: re.Pattern[str], key: Any) -> bool:
    return isinstance(key, str) and pattern.search(key[:512]) is not None


def _is_fairseq(value: Mapping[Any, Any], model: Mapping[Any, Any]) -> bool:
    if any(key in value for key in _FAIRSEQ_KEYS):
        return True
    return any(_matches(_FAIRSEQ_WEIGHT, key) for key in model)


def _fairseq_options(value: Mapping[Any, Any]) -> dict[str, Any] | None:
    """The options of ``args``, or of the ``cfg`` that came after it: those of the model."""
    if is_namespace(value.get("args")):
        options: dict[str, Any] = plain_value(value["args"])
        return options
    config = plain_value(value.get("cfg"))
    model = config.get("model") if isinstance(config, dict) else None
    return model if isinstance(model, dict) else None


def _read_opennmt(path: Path, contents: Contents) -> StateDict:
    """Move the separate state dict ``generator`` in, if the file has one."""
    value = contents.value
    model = value.get("model")
    model = dict(model) if isinstance(model, dict) else {}
    generator = value.get("generator")
    if isinstance(generator, dict):
        model |= {f"generator.{key}": item for key, item in generator.items()}
    options = {"opt": plain_value(value["opt"]), "ids": special_ids(value["vocab"])}
    return _state(path, contents, model, OPENNMT_PY, options)


def _state(
    path: Path,
    contents: Contents,
    model: Mapping[Any, Any],
    model_type: str = "",
    options: Mapping[str, Any] | None = None,
) -> StateDict:
    pickle_checks.survey(contents)
    check_keys([str(key) for key in model], path)
    wanted = {str(key): item for key, item in model.items()}
    tensors = read_tensors(path, contents, wanted)
    others = tuple(key for key in wanted if key not in tensors)
    config = {} if options is None else {**options, MODEL_TYPE: model_type}
    return StateDict(path, tensors, others, config=config, config_name=f"{path.name}'s options")
