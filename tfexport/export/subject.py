"""What is exported, whatever it came from: the one noun of this package.

A reader makes a ``Subject`` of a checkpoint (``checkpoint_subject``) or of a user's module
(``module_subject``). Writing, comparing and quantising it ask it alone, and never where it is from.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import onnx_ir as ir
from torch import Tensor

from tfexport import __version__
from tfexport.bundle import Manifest, SpecialIds, TokenizerEntry
from tfexport.errors import ConfigError, join_problems
from tfexport.export.graph_options import GraphOptions
from tfexport.export.graphs.step_model import GreedyRules
from tfexport.export.parity.bundle import CompareGraph
from tfexport.export.parity.eager_run import Eager
from tfexport.export.parity.plan import (
    FULL,
    ComparisonPlan,
    are_arrays,
    frame_samples,
    plan_bundle,
)
from tfexport.export.text.tokenizer_files import TokenizerFiles
from tfexport.graph_io import GraphSpec
from tfexport.model_src.checkpoint.generation_config import Generation
from tfexport.runtime.text.codec import NO_LANGUAGES, LanguagePair, find_language_tokens
from tfexport.typing import PathLike, Progress

# Which part of a model the native engine runs.
WHOLE, DECODER, LAYERS = "whole", "decoder", "layers of the encoder and decoder"


@dataclass(frozen=True)
class Reason:
    """Why a reader makes no subject of a model, or it is not exported so, for a note."""

    text: str


@dataclass(frozen=True)
class Form:
    """A graph of a subject: one of a bundle, or one that is a file by itself.

    Attributes:
        name: the role of the graph in the manifest, or in the option ``graph`` and in the file.
        export: returns the graph; called with the subject and the graphs of ``needs``, in order,
            or without these for a file.
        compare: compares the graph with the original: called with each batch that this has run, and
            with the open bundle or file.
        needs: names of the forms whose graphs this one is made from; these are exported first.
        exists_for: whether the graph exists for a subject.
        in_bundle: whether bundles have it; a graph that they have not is a file.
        spec: the inputs and outputs of a file, by its subject; None of a graph that is no file.
        decodes: whether a file returns tokens. If so, the model needs special tokens and
            embeddings, and the file can have text inputs and outputs, and quantised weights.
    """

    name: str
    export: Callable[..., ir.Model]
    compare: CompareGraph
    needs: tuple[str, ...] = ()
    exists_for: Callable[[Any], bool] = lambda subject: True
    in_bundle: bool = True
    spec: Callable[[Any], GraphSpec] | None = None
    decodes: bool = True

    @property
    def filename(self) -> str:
        """The file name of the graph in a bundle."""
        return f"{self.name}.onnx"


@dataclass(frozen=True, kw_only=True)
class Subject(ABC):
    """What is exported: a model with all that its bundle holds and is compared with.

    Attributes:
        special_ids: the special ids of the vocabularies; None of a model that decodes no tokens.
        generation: the decoding defaults of the model's files.
        options: the options of the graphs.
        tokenizers: the tokenizers, which were checked against the model's vocabularies.
        level: how much is compared with the original: "full", "quick", or "" for nothing.
        samples: a file of real inputs that are compared too.
        expect: a file of sources and the texts that are expected.
        language_pair: the languages of ``samples`` and ``expect``.
        reads: "texts" if the model reads them as a whole; see ``Manifest``.
        preprocessing: of the model's files, see ``Manifest``; None if there is none.
    """

    special_ids: SpecialIds | None
    generation: Generation
    options: GraphOptions
    tokenizers: TokenizerFiles = field(default_factory=TokenizerFiles)
    level: str = FULL
    samples: PathLike | None = None
    expect: PathLike | None = None
    language_pair: LanguagePair = NO_LANGUAGES
    reads: str | None = None
    preprocessing: dict[str, Any] | None = None

    @property
    @abstractmethod
    def layout(self) -> str | None:
        """The layout of the checkpoint; None for a module that is not recognised."""

    @property
    @abstractmethod
    def notes(self) -> tuple[str, ...]:
        """Remarks for the user."""

    @property
    @abstractmethod
    def native(self) -> str | None:
        """The part that the native engine runs: ``WHOLE``, ``DECODER``, ``LAYERS``, or None."""

    @property
    def alignment_heads(self) -> Sequence[Sequence[int]]:
        """Layer and head of the attention that the graph ``alignment`` gives."""
        return ()

    @property
    def opset(self) -> int:
        """The opset version of the standard operators."""
        return self.options.opset

    @cached_property
    def rules(self) -> GreedyRules:
        """The rules of the model that are part of its greedy search."""
        return GreedyRules.of(self.generation.defaults)

    @property
    def sides(self) -> tuple[str, ...]:
        """The sides that are texts."""
        return ("source", "target")

    @abstractmethod
    def export_encoder(self) -> ir.Model:
        """Export the encoder."""

    @abstractmethod
    def export_decoder(self) -> ir.Model:
        """Export a step of the decoder."""

    @abstractmethod
    def export_generate(self, encoder: ir.Model | None = None) -> ir.Model:
        """Export a greedy search.

        Args:
            encoder: the graph of the encoder, of a bundle; None for a file by itself.
        """

    @abstractmethod
    def export_beam(self, encoder: ir.Model) -> ir.Model:
        """Export a beam search, which contains the graph of the encoder."""

    @property
    def has_step(self) -> bool:
        """Whether its rows can be at different positions of one batch."""
        return False

    @property
    @abstractmethod
    def generate_spec(self) -> GraphSpec:
        """The inputs and outputs of a greedy search that is a file by itself."""

    @abstractmethod
    def weights(self) -> Mapping[str, Tensor]:
        """The weights that the native engine reads, by name; empty if it runs no part."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """The fields of the manifest that describe the model."""

    @property
    @abstractmethod
    def eager(self) -> Eager:
        """The original in eager PyTorch, which every artifact is compared with."""

    def plan(self, folder: Path, manifest: Manifest, progress: Progress) -> ComparisonPlan:
        """What is compared of its bundle.

        Raises:
            ConfigError: a language is unknown to the model, or required and missing.
            InputError: a sample is invalid.
        """
        return plan_bundle(folder, manifest, self.level, self.samples, progress, self.language_pair)

    def check_languages(self, translates: bool) -> None:
        """Before the export, check the languages of real texts.

        Args:
            translates: whether the texts are translated; otherwise only sources are encoded.

        Raises:
            ConfigError: a language is unknown to the model, or required and missing.
        """
        languages, pair = self.tokenizers.languages, self.language_pair
        if are_arrays(self.samples) and self.expect is None:
            pair = pair._replace(as_ids=True)
        frame_samples(languages, pair)
        if translates:
            assert self.special_ids is not None
            starts = self.generation.defaults.get("first_token"), self.special_ids.start
            tokens = find_language_tokens(languages, pair, starts)
            if tokens.problems:
                raise ConfigError(join_problems("samples", tokens.problems))

    def export(self, form: Form, *graphs: ir.Model) -> ir.Model:
        """Export one graph.

        Args:
            form: one that exists for the subject.
            graphs: those that it needs, in order. "generate" exports its own without them.

        Raises:
            ExportError: torch's exporter failed.
        """
        return form.export(self, *graphs)


def describe(
    subject: Subject, graphs: Mapping[str, ir.Model], tokenizers: Mapping[str, TokenizerEntry]
) -> Manifest:
    """The manifest of a bundle that holds these graphs and tokenizers."""
    domains: dict[str, int] = {}
    for graph in graphs.values():
        domains |= graph.opset_imports
    return Manifest(
        tfexport_version=__version__,
        opset=domains,
        ir_version=max(graph.ir_version for graph in graphs.values()),
        minimum_onnxruntime=subject.options.minimum_onnxruntime,
        graphs={name: f"{name}.onnx" for name in graphs},
        tokenizers={side: tokenizers[side] for side in subject.sides if side in tokenizers},
        languages=subject.tokenizers.languages,
        reads=subject.reads,
        preprocessing=subject.preprocessing,
        **subject.facts(),
    )
