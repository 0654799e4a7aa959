"""The inputs of a module's export, read and checked before anything is exported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from torch import nn

from tfexport import graph_io
from tfexport.bundle import SpecialIds
from tfexport.errors import ConfigError, Message, Option, join_problems, shown
from tfexport.export.artifacts.keywords import (
    ExportKeywords,
    check_expect,
    language_pair_of,
    reads_texts,
)
from tfexport.export.artifacts.option_rules import BY_FORWARD, BY_METHODS, STEPS
from tfexport.export.graph_options import GraphOptions
from tfexport.export.incremental.example import declare
from tfexport.export.incremental.find import find_program, find_steps
from tfexport.export.incremental.forward import TARGET, OwnForward, check_target
from tfexport.export.incremental.program import Program
from tfexport.export.module_subject import ModuleSubject
from tfexport.export.modules.contract import (
    UserModule,
    forward_problem,
    require_forward,
)
from tfexport.export.modules.examine import ModuleProbe, examine
from tfexport.export.modules.inputs import Input, check_examples, check_inputs
from tfexport.export.text.families.built import ModelTokenizers
from tfexport.export.text.tokenizer_files import Splits, TokenizerFiles, choose_tokenizers
from tfexport.model_src.checkpoint.generation_config import Generation
from tfexport.model_src.config import TransformerConfig
from tfexport.module_rows import Array
from tfexport.runtime.text.codec import NO_LANGUAGES
from tfexport.typing import Progress


@dataclass(frozen=True)
class ModuleFacts:
    """The facts about a module that decoding needs, besides its code.

    Attributes:
        special: the special ids of the vocabularies.
        max_length: the maximum number of tokens of a row.
        generation: the decoding defaults of the model's files.
        tokenizers: of the model's files; None if there are none.
        preprocessing: of the model's files, see ``Manifest``; None if there is none.
    """

    special: SpecialIds
    max_length: int
    generation: Generation = field(default_factory=Generation)
    tokenizers: ModelTokenizers | None = None
    preprocessing: dict[str, Any] | None = None

    @classmethod
    def of(cls, options: ExportKeywords) -> ModuleFacts:
        """Read them from the options of ``export``."""
        ids = options["pad_id"], options["bos_id"], options["eos_id"], options.get("unk_id")
        return cls(SpecialIds(*ids), options["max_length"])


def check_arguments(function: str, model: Any, facts: ModuleFacts) -> None:
    """Refuse arguments of the wrong types, and ids and lengths out of bounds.

    Raises:
        ConfigError: there are any; the message lists all.
    """
    ids, max_length = facts.special, facts.max_length
    problems: list[Message] = []
    if not isinstance(model, nn.Module):
        problems.append(Message(Option("model"), f": {shown(model)} is not a torch.nn.Module"))
    for name in ("pad", "bos", "eos", "unk"):
        value = getattr(ids, name)
        if value is None and name == "unk":
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            text = f": {shown(value)} is not a non-negative integer"
            problems.append(Message(Option(f"{name}_id"), text))
    if isinstance(max_length, bool) or not isinstance(max_length, int) or max_length < 1:
        text = f": {shown(max_length)} is not a positive integer"
        problems.append(Message(Option("max_length"), text))
    if problems:
        raise ConfigError(join_problems(function, problems))


@dataclass(frozen=True)
class ModuleCall:
    """How a module is called, and what its graphs are made for.

    Attributes:
        model: the user's.
        inputs: as the graphs take them.
        own: its forward, which is exported or, with ``by_methods``, compared with; None for a
            module that has methods alone.
        by_methods: its steps are the methods of docs/modules.md.
        facts: what decoding needs to know.
        examples: rows of real inputs.
        graphs: the options of the graphs.
        progress: called at every step.
    """

    model: nn.Module
    inputs: tuple[Input, ...]
    own: OwnForward | None
    by_methods: bool
    facts: ModuleFacts
    examples: Sequence[Mapping[str, Array]]
    graphs: GraphOptions
    progress: Progress

    @cached_property
    def program(self) -> Program:
        """The exported program of its forward."""
        assert self.own is not None
        self.progress("exporting your forward", 0, 1)
        return find_program(self.own, self.examples, self.facts.special, self.facts.max_length)


def read_call(
    model: nn.Module,
    inputs: Sequence[Input] | None,
    facts: ModuleFacts,
    options: ExportKeywords,
    progress: Progress,
) -> ModuleCall:
    """Check inputs, or find them by an example."""
    target, forward = options.get("target", TARGET), options.get("forward")
    check_target(target, forward)
    steps = options.get("steps")
    if steps is not None and steps not in STEPS:
        text = f": {shown(steps)} is neither {BY_FORWARD!r} nor {BY_METHODS!r}"
        raise ConfigError(Message(Option("steps"), text))
    example, rows = options.get("example"), options.get("examples", ())
    if example is None:
        assert inputs is not None  # one of both is given
    else:
        progress("finding the axes of your example", 0, 1)
        declared = declare(model, example, forward)
        inputs, target, rows = declared.inputs, declared.target, rows or [declared.row]
    checked = check_inputs(inputs, batch_first=False)
    declared_call = example is not None or "target" in options or forward is not None
    own = None
    if steps == BY_FORWARD and not declared_call:
        require_forward(model, len(checked))
    if declared_call or forward_problem(model, len(checked)) is None:
        own = OwnForward(model, checked, target, forward)
    by_methods = own is None or steps == BY_METHODS
    if own is None or by_methods:
        check_inputs(checked)
    else:
        checked = own.batch_first
    examples = check_examples(checked, rows)
    graphs = GraphOptions.choose(options.get("opset"), options.get("portable", False))
    return ModuleCall(model, checked, own, by_methods, facts, examples, graphs, progress)


def read_module(call: ModuleCall, level: str, options: ExportKeywords) -> ModuleSubject:
    """Examine a module in eval mode, by the steps that are found if it has a forward alone."""
    facts, model = call.facts, call.model
    ids, max_length = facts.special, facts.max_length
    if not call.by_methods:
        program = call.program
        call.progress("finding encoder, cache and step in your forward", 0, 1)
        model = find_steps(program, ids, max_length, fused=not call.graphs.portable)
    module = UserModule(model, len(call.inputs), call.own if call.by_methods else None)
    call.progress("running your module at several sizes", 0, 1)
    longest = None if call.by_methods else call.program.longest
    probe = examine(module, call.inputs, call.examples, ids, max_length, longest)
    _check_ids(ids, probe)
    framing = framing_of(options)
    vocabularies = _vocabularies(probe, facts.special, framing)
    tokenizers = choose_module_tokenizers(probe.inputs, vocabularies, facts, options)
    check_expect(options, bool(level))
    subject = ModuleSubject(
        probe=probe, special_ids=ids, max_length=max_length, options=call.graphs,
        tokenizers=tokenizers, framing=framing, examples=call.examples, level=level,
        samples=options.get("samples"), expect=options.get("expect"),
        language_pair=language_pair_of(options, "export"), reads=reads_texts(options, False),
        generation=facts.generation, preprocessing=facts.preprocessing,
        notes=_notes(call, probe),
    )  # fmt: skip
    if subject.language_pair != NO_LANGUAGES:
        subject.check_languages(translates=subject.expect is not None)
    return subject


def _notes(call: ModuleCall, probe: ModuleProbe) -> tuple[str, ...]:
    """Remarks on limits of a module's inputs, and on a forward that was not compared."""
    limits = [f"{axis} is at most {most}" for axis, most in probe.io.longest.items()]
    if limits:
        return (f"{' and '.join(limits)}: beyond, your code takes another branch",)
    reason: str | None = probe.module.why_no_judge
    if call.own is None:
        reason = forward_problem(call.model, len(call.inputs))
    return (f"its methods were not compared with its forward: {reason}",) if reason else ()


def framing_of(options: ExportKeywords) -> dict[str, bool]:
    """The special tokens that are put around the ids of a source text."""
    return {name: bool(options.get(name, False)) for name in ("add_source_bos", "add_source_eos")}


def _check_ids(ids: SpecialIds, probe: ModuleProbe) -> None:
    """Refuse special ids that the logits do not cover."""
    size = probe.vocab_size
    beyond = {
        name: value
        for name in ("pad", "bos", "eos", "unk")
        if (value := getattr(ids, name)) is not None and value >= size
    }
    problems: list[str | Message] = [
        Message(Option(f"{name}_id"), f": {value} is not a token id; the logits have {size} values")
        for name, value in beyond.items()
    ]
    if problems:
        names = ", ".join(each.name for each in (*probe.inputs, TARGET))
        more = max(beyond.values()) + 1 - size
        problems.append(
            "if it has a row in the table of embeddings and no logit, as a start token may have, "
            f"give it one that is never chosen: forward=lambda model, {names}: torch.nn.functional."
            f"pad(model({names}), (0, {more}), value=float('-inf'))"
        )
        raise ConfigError(join_problems(probe.module.name, problems))


def choose_module_tokenizers(
    inputs: Sequence[Input],
    vocabularies: TransformerConfig,
    facts: ModuleFacts,
    options: ExportKeywords,
) -> TokenizerFiles:
    """The tokenizers that are given for a module, checked against its vocabularies.

    Raises:
        ConfigError: options that contradict each other.
        TokenizerError: the files do not fit.
    """
    target, source = options.get("tokenizer"), options.get("source_tokenizer")
    if source is not None and target is None:
        raise ConfigError(Message(
            Option("source_tokenizer"), " requires ", Option("tokenizer"), ", the target tokenizer."
        ))  # fmt: skip
    if source is not None and all(each.name != graph_io.INPUT_IDS for each in inputs):
        raise ConfigError(Message(
            Option("source_tokenizer"), ": the module takes ",
            ", ".join(each.name for each in inputs), ", not text; omit it.",
        ))  # fmt: skip
    splits = Splits(options.get("split"), options.get("source_split"), options.get("target_split"))
    if target is not None:
        files = TokenizerFiles(Path(source or target), Path(target), *splits.sides)
    elif facts.tokenizers is not None and not any(splits.sides):
        files = TokenizerFiles(model=facts.tokenizers)
    else:
        return choose_tokenizers(splits=splits)
    files.check(vocabularies)
    return files


@dataclass(frozen=True)
class _Vocabularies:
    """The sizes and special ids that a tokenizer is checked against."""

    source_vocab_size: int
    target_vocab_size: int
    pad_id: int
    bos_id: int
    eos_id: int
    unk_id: int | None
    add_source_bos: bool
    add_source_eos: bool


def _vocabularies(
    probe: ModuleProbe, ids: SpecialIds, framing: Mapping[str, bool]
) -> TransformerConfig:
    size = probe.vocab_size
    source = int(probe.below.get(graph_io.INPUT_IDS, size)) if probe.io.takes_ids else size
    special = ids.pad, ids.bos, ids.eos, ids.unk
    return cast(TransformerConfig, _Vocabularies(source, size, *special, **framing))
