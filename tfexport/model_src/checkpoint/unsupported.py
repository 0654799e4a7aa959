"""Checkpoints that are not read: each with the reason and an alternative.

What is known of them is data, in ``unsupported.json``:

- ``phrases``: words that its other texts have in braces.
- ``models``: models by the ``model_type`` of their folder's config.json (``kinds``), and by keys
  that only they have.
- ``marks``: models by certain marks among their keys, never by the name of a single layer.
- ``forms_of_keys``, ``forms_of_files``: files that are not the plain weights of a complete model:
  adapters that were not merged, quantised weights, parts of a distributed training, files of other
  frameworks; each with what it is and what to do, by patterns of keys and of file names.

A model's ``keys`` are patterns: a key has to match each, and none those that start with "!".
"""

import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tfexport.bundle import MANIFEST, is_bundle
from tfexport.errors import CheckpointError, ConfigError, Message, join_some
from tfexport.model_src.config import FRAMING, config_keys, nearest_key

_DATA = json.loads(Path(__file__).with_name("unsupported.json").read_text(encoding="utf-8"))
_PHRASES: dict[str, str] = _DATA["phrases"]
MODULE, FOLDER, BY_FORWARD = (_PHRASES[name] for name in ("module", "folder", "by_forward"))


@dataclass(frozen=True)
class Unsupported:
    """A model that is not read.

    Attributes:
        title: the name in messages.
        reason: a clause, "because …" without the word; empty where the title says it.
        ways: clauses that name an alternative.
        keys: patterns of its keys; empty if they are not known.
        one_stack: whether it is an encoder or a decoder alone.
    """

    title: str
    reason: str
    ways: tuple[str, ...] = (MODULE,)
    keys: tuple[str, ...] = ()
    one_stack: bool = False

    def __str__(self) -> str:
        ways = "; ".join(self.ways)
        reason = f": {self.reason}" if self.reason else ""
        return f"{self.title}, which no layout reads{reason}. {ways[0].upper()}{ways[1:]}."


def _filled(text: str, **words: str) -> str:
    return text.format(**_PHRASES, **words)


def _read_model(entry: Mapping[str, Any], kind: str = "") -> Unsupported:
    return Unsupported(
        _filled(entry["title"], kind=kind),
        _filled(entry.get("reason", "")),
        tuple(_filled(way) for way in entry.get("ways", ["{module}"])),
        tuple(entry.get("keys", ())),
        entry.get("one_stack", False),
    )


# By the ``model_type`` of config.json.
UNSUPPORTED = {
    kind: _read_model(entry, kind)
    for entry in (*_DATA["models"], *_DATA["marks"])
    for kind in entry.get("kinds", ())
}
_MARKS = [_read_model(entry) for entry in _DATA["marks"]]
_NAMED = [_read_model(entry) for entry in _DATA["models"] if "keys" in entry]
_FORMS_OF_KEYS = [(it["keys"], _filled(it["text"])) for it in _DATA["forms_of_keys"]]
_FORMS_OF_FILES = [(it["names"], _filled(it["text"])) for it in _DATA["forms_of_files"]]

# What the forward of a model takes, by the reason why no layout reads it; ids otherwise.
_INPUTS = {
    "Whisper of OpenAI's": '"mel", "float32", ("batch", 80, 3000)',
    _PHRASES["speech"]: '"input_features", "float32", ("batch", 80, "frames")',
    _PHRASES["image"]: '"pixel_values", "float32", ("batch", 3, 224, 224)',
}
_IDS = '"input_ids", "int64", ("batch", "source_length")'


@contextlib.contextmanager
def with_lines(path: Path | None = None, inside: Sequence[Any] | None = None) -> Iterator[None]:
    """Inside the block, add the lines of code to errors that name ``MODULE`` as a way.

    Args:
        path: the checkpoint; None for a module in memory.
        inside: the keys that lead to the state dict in what ``torch.load`` gives; None if it gives
            no state dict, or one with other keys than the module's.
    """
    try:
        yield
    except (CheckpointError, ConfigError) as error:
        raise type(error)(add_lines(error.message, path, inside)) from error.__cause__


def add_lines(
    message: str | Message, path: Path | None = None, inside: Sequence[Any] | None = None
) -> Message:
    """A message, with the lines of code if it names ``MODULE`` as a way; see ``with_lines``."""
    text = str(message)
    if MODULE[1:] not in text:  # it may begin a sentence
        return Message(message)
    inputs = next((code for reason, code in _INPUTS.items() if reason in text), _IDS)
    own = "from tfexport.export import Input, export"
    lines = [
        *([own] if path is None else _loading(path, inside, own)),
        f'export(model, "model.bundle", inputs=[Input({inputs})],',
        "       pad_id=PAD_IDX, bos_id=BOS_IDX, eos_id=EOS_IDX, max_length=100)",
    ]
    where = "In Python, with your own class (docs/training-script.md has other inputs and calls):"
    return Message(message, f"\n{where}\n\n", "\n".join(lines))


def _loading(path: Path, inside: Sequence[Any] | None, own: str) -> list[str]:
    """Lines that import a class and what they need, and build it with the weights of a file."""
    name = _quoted(str(path))
    imported = [own, "from your_code import YourModel"]
    made = "model = YourModel()  # as it is built for the training"
    if inside is None:
        return [*imported, f"{made}, with the weights of {name}"]
    if path.suffix == ".safetensors":
        load = f"model.load_state_dict(load_file({name}))"
        return ["from safetensors.torch import load_file", *imported, made, load]
    keys = "".join(f"[{_quoted(key) if isinstance(key, str) else repr(key)}]" for key in inside)
    # A file that was saved on a GPU names its device, which this machine may not have.
    load = f'torch.load({name}, map_location="cpu", weights_only=True)'
    return ["import torch", *imported, made, f"model.load_state_dict({load}{keys})"]


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


_HUGGING_FACE_ALONE = ("architectures", "transformers_version")
_HUGGING_FACE_KEYS = ("model_type", *_HUGGING_FACE_ALONE)
_NO_LAYOUT = "docs/families.md has those that are read"
_ANYWHERE = (MODULE, "see whether Optimum exports or CTranslate2 converts it")


def _fits(names: list[str], patterns: Iterable[str]) -> bool:
    return all(
        any(re.search(pattern.removeprefix("!"), name) for name in names)
        is not pattern.startswith("!")
        for pattern in patterns
    )


def describe_unsupported(names: Iterable[str]) -> str | None:
    """Name the model that a few names of tensors identify; None if none does."""
    names = list(names)
    model = next((it for it in _NAMED if _fits(names, it.keys)), None)
    return None if model is None else str(replace(model, ways=(FOLDER, *model.ways)))


def describe_names(names: Iterable[str]) -> str | None:
    """Name the project or kind of model that the names of tensors belong to; None if unknown."""
    names = list(names)
    if (unsupported := describe_unsupported(names)) is not None:
        return unsupported
    return next((str(it) for it in _MARKS if _fits(names, it.keys)), None)


def describe_config(values: Mapping[str, Any]) -> str | None:
    """Name the model that a Hugging Face config.json describes, and why it is not read.

    Returns:
        None for a file that is not of Hugging Face.
    """
    if not any(key in values for key in _HUGGING_FACE_KEYS) or is_ours(values):
        return None
    architectures = values.get("architectures")
    named = isinstance(architectures, list) and architectures and isinstance(architectures[0], str)
    title = architectures[0][:80] if named and architectures else "model"
    kind = values.get("model_type")
    if isinstance(kind, str) and kind in UNSUPPORTED:
        return str(UNSUPPORTED[kind])
    detail = f" (model_type {kind[:80]})" if isinstance(kind, str) else ""
    return str(Unsupported(f"a Hugging Face {title}{detail}", _NO_LAYOUT, _ANYWHERE))


def is_one_stack(values: Mapping[str, Any]) -> bool:
    """Whether a Hugging Face config.json is that of an encoder or a decoder alone."""
    model = UNSUPPORTED.get(str(values.get("model_type")))
    return model is not None and model.one_stack


def is_ours(values: Mapping[str, Any]) -> bool:
    """Whether a config.json is of tfexport: at least half of its keys are, misspelt ones included.

    Some keys of Hugging Face are similar (``encoder_layers``), so in their files only exact ones
    count.
    """
    known = (*config_keys(), "rename", "ignore", FRAMING)
    theirs = any(key in values for key in _HUGGING_FACE_ALONE)
    ours = [key for key in values if key in known or (not theirs and nearest_key(key, known))]
    return 2 * len(ours) >= len(values)


_ADAPTER_FILES = (
    "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin", "pytorch_adapter.bin",
)  # fmt: skip
_HEADS = (
    (b"\x89HDF\r\n\x1a\n", "model.h5"),
    (b"GGUF", "model.gguf"),
)
_BUNDLE = (
    "a bundle of tfexport, which is exported already: 'tfexport translate', 'serve', 'verify' and "
    "'quantize' take it. Pass the checkpoint that it was exported from."
)


def describe_form(keys: Iterable[str]) -> str | None:
    """Describe the form of the weights with these keys; None for plain ones."""
    keys = list(keys)
    for pattern, text in _FORMS_OF_KEYS:
        if found := [key for key in keys if re.search(pattern, key)]:
            return f"holds {text} They are {join_some(found, 3)}."
    return None


def describe_form_of_folder(folder: Path, weights: bool) -> str | None:
    """Describe the form of the model of a folder; None for plain weights or an unknown form.

    Args:
        folder: the folder with the model's files.
        weights: whether it holds weights of PyTorch; then only adapters matter.
    """
    names = sorted(path.name for path in folder.iterdir())
    if MANIFEST in names and is_bundle(folder):
        return _BUNDLE
    if adapters := [name for name in _ADAPTER_FILES if name in names]:
        how = "in addition to its weights" if weights else "alone"
        return (
            f"holds an adapter such as LoRA {how} ({', '.join(adapters)}). Merge it into the "
            "model, compare the logits of both (docs/checkpoints.md, adapters), save it, and "
            "export that:\n"
            f"  from peft import AutoPeftModelForSeq2SeqLM\n"
            f"  model = AutoPeftModelForSeq2SeqLM.from_pretrained({folder.name!r})\n"
            "  model.merge_and_unload().save_pretrained('merged')"
            + ("\nTo export the model without it, name the file of its weights." if weights else "")
        )
    return None if weights else _describe_names(names)


def describe_form_of_file(path: Path, head: bytes) -> str | None:
    """Describe the form of a file that is no checkpoint of PyTorch, by its name and first bytes."""
    if b"Spec\0" in head[:32]:
        return "a model of CTranslate2. Pass the weights that it was converted from."
    name = next((name for mark, name in _HEADS if head.startswith(mark)), path.name)
    return next((text for pattern, text in _FORMS_OF_FILES if re.fullmatch(pattern, name)), None)


def _describe_names(names: list[str]) -> str | None:
    for pattern, text in _FORMS_OF_FILES:
        if found := [name for name in names if re.fullmatch(pattern, name)]:
            what, _, way = text.partition(". ")
            return f"holds {what} ({join_some(found, 3)}). {way}"
    return None
