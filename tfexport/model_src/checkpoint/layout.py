"""Layouts: the names of weights, and the config defaults, of a family of models."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from tfexport.model_src.checkpoint.generation_config import Generation
from tfexport.model_src.checkpoint.keymap import KeyTable


def unchanged_config(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the values of a config.json with tfexport's own keys."""
    return values


@dataclass(frozen=True)
class Prepared:
    """The tensors of a file, made ready for a key table.

    Attributes:
        tensors: the tensors for the key table, under their names in the file or new names.
        read: keys of the file that were read otherwise, to the names in ``tensors`` that they
            became; to none where a tensor was only checked, as a table of sinusoids is.
        values: config values that only the tensors show.
        problems: sentences about tensors.
        notes: remarks for the user.
    """

    tensors: Mapping[str, Tensor]
    read: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def unprepared(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> Prepared:
    """Return the tensors unchanged."""
    return Prepared(tensors)


@dataclass(frozen=True)
class Layout:
    """One family of models.

    Attributes:
        name: the name in the option ``layout``.
        title: the name in messages.
        table: the checkpoint's keys to the model's weights.
        defaults: config values where neither the checkpoint nor the caller specifies anything.
        required: config keys without a default.
        read_config: values of a config.json of this kind to tfexport's config values.
        model_types: values of ``model_type`` that mark a config.json as its own kind.
        needs_config: only such a config.json, or the option ``layout``, chooses it: its keys are
            those of other layouts too.
        prepare: makes the file's tensors, in float32, ready for ``table``; it is given the values
            of the model's own kind of config.json too, which are empty if there is none.
        generation: values of its config.json and generation_config.json to how the model decodes;
            None if it has no such files.
        reads_texts: its models read texts of several sentences, for example to summarise them, or
            texts with a task in front.
        tokenizer_class: the class of the tokenizer of a folder that names none; without it a
            tokenizer.json is read as it is.
        takes_start_token: whether a tokenizer may put a start token before every text.
        reference: its original mathematics, which exports are compared with where no other code
            judges: the dotted name of a module with an ``ORIGINAL``, or ``module:NAME``. None if
            there is none.
        no_reference: the reason why there is none.
    """

    name: str
    title: str
    table: KeyTable
    defaults: Mapping[str, Any] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    read_config: Callable[[Mapping[str, Any]], Mapping[str, Any]] = unchanged_config
    model_types: tuple[str, ...] = ()
    needs_config: bool = False
    prepare: Callable[[Mapping[str, Tensor], Mapping[str, Any]], Prepared] = unprepared
    generation: Callable[[Mapping[str, Any], Mapping[str, Any]], Generation] | None = None
    reads_texts: bool = False
    tokenizer_class: str = ""
    takes_start_token: bool = True
    reference: str | None = None
    no_reference: str = "tfexport has no original of this layout to run"

    def recognises(self, config: Mapping[str, Any]) -> bool:
        """Whether a config.json is of this layout's own kind."""
        return config.get("model_type") in self.model_types
