"""Reading a checkpoint as the subject of an export, and its comparison with a bundle.

Artifacts that decode tokens need special ids and embeddings.
"""

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfexport.bundle import open_bundle
from tfexport.errors import (
    BundleError,
    ConfigError,
    Message,
    MissingDependencyError,
    Option,
    Problem,
    TokenizerError,
    join_problems,
)
from tfexport.export.artifacts.bundle import check_bundle
from tfexport.export.artifacts.info import info_of_bundle
from tfexport.export.artifacts.keywords import (
    ExportKeywords,
    VerifyKeywords,
    check_expect,
    graph_options,
    language_pair_of,
    read_options,
    reads_texts,
    tokenizer_files,
)
from tfexport.export.artifacts.option_rules import BUNDLE, TORCH_FILES, TORCHSCRIPT, Output
from tfexport.export.checkpoint_subject import (
    CheckpointSubject,
    Extras,
)
from tfexport.export.forms import file_form, file_forms
from tfexport.export.graph_options import GraphOptions
from tfexport.export.report import ParityReport
from tfexport.export.text.model_tokenizers import find_model_tokenizers
from tfexport.export.text.text_graphs import OLDEST_OPSET
from tfexport.export.text.tokenizer_files import TokenizerFiles
from tfexport.model_src.checkpoint.checkpoint import Checkpoint
from tfexport.model_src.checkpoint.generation_config import GENERATION_FILE
from tfexport.model_src.checkpoint.read_options import CheckpointLike, ReadOptions, files_of
from tfexport.model_src.config import BUNDLE_IDS
from tfexport.typing import Progress

# Decoding defaults that a file for greedy decoding keeps (see greedy_rules), or that do not act on
# greedy search.
_KEPT = frozenset({
    "suppress_tokens", "first_token", "last_token", "search_rules", "beam_size", "num_hypotheses",
    "length_penalty", "early_stopping", "exhaustive", "renormalize_logits", "max_length",
    "temperature", "top_k", "top_p",
})  # fmt: skip


def start_as_files_say(found: Checkpoint) -> Checkpoint:
    """A copy with the start token of the checkpoint's generation_config.json."""
    start = found.read_generation().start_id
    if start is None or start == found.config.decoder_start_id:
        return found
    config = dataclasses.replace(found.config, start_id=start)
    origins = {**found.origins, "start_id": GENERATION_FILE}
    return dataclasses.replace(found, config=config, origins=origins)


def needs_language(checkpoint: Checkpoint) -> bool:
    """Whether decoding starts with a target language that the model's files do not set."""
    languages = None
    kind = checkpoint.own_config.get("model_type")
    if checkpoint.path is not None and isinstance(kind, str):
        with contextlib.suppress(TokenizerError, MissingDependencyError):  # then it takes ids
            found = find_model_tokenizers(checkpoint.path.parent, kind, checkpoint.own_config)
            languages = found.languages if found is not None else None
    if languages is None:
        return False
    first = checkpoint.read_generation().defaults.get("first_token")
    start = checkpoint.config.decoder_start_id
    ids = languages.ids.values()
    return (languages.target_place == "first" and first not in ids) or (
        languages.target_place == "start" and start not in ids
    )


def check_greedy_file(checkpoint: Checkpoint) -> None:
    """Refuse a single file for a model with decoding defaults that the file cannot contain.

    Raises:
        ConfigError: there are such defaults; the message lists them.
    """
    language = ["the target language, which each call sets"] if needs_language(checkpoint) else []
    check_greedy_defaults(checkpoint.name, checkpoint.read_generation().defaults, language)


def check_greedy_defaults(
    name: str, defaults: Mapping[str, Any], others: Sequence[str] = ()
) -> None:
    """Refuse decoding defaults that a single file cannot contain.

    Args:
        name: of the model.
        defaults: of its files.
        others: what the file cannot contain either.

    Raises:
        ConfigError: there are any; the message lists them.
    """
    lost = [f"{key}={defaults[key]!r}" for key in defaults if key not in _KEPT]
    lost += others
    if lost:
        remedy = Message(
            "Export a bundle (without ", Option("graph"), "), which contains them, or remove them "
            f"from {GENERATION_FILE} if the model does not need them.",
        )  # fmt: skip
        text = f"a single file cannot contain these decoding defaults: {', '.join(lost)}"
        raise ConfigError(join_problems(name, [text], remedy))


def read_for_decoding(
    checkpoint: CheckpointLike, read: ReadOptions, defaults: Mapping[str, Any] | None = None
) -> Checkpoint:
    """Read a checkpoint for an artifact that decodes tokens; see ``ReadOptions.read``.

    Raises:
        ConfigError: special ids or embeddings are missing, or the decoding defaults in its files
            are not supported.
    """
    model = read.read(checkpoint, BUNDLE_IDS, defaults)
    if not model.config.has_embeddings:
        raise ConfigError(
            Message(
                f"{model.name}: the model has no embeddings, so there are no tokens to decode. "
                "Export its teacher-forced graph with ",
                Option("graph", "forward"),
                ".",
            )
        )
    return start_as_files_say(model)


def read_for(
    kind: str,
    checkpoint: CheckpointLike,
    read: ReadOptions,
    defaults: Mapping[str, Any] | None = None,
) -> Checkpoint:
    """Read a checkpoint for an artifact of a kind; see ``ReadOptions.read``.

    Raises:
        ConfigError: see ``read_for_decoding``, of artifacts that decode.
    """
    if kind in file_forms() and not file_form(kind).decodes:
        return read.read(checkpoint, defaults=defaults)
    if kind != TORCHSCRIPT:
        return read_for_decoding(checkpoint, read, defaults)
    model = read.read(checkpoint, BUNDLE_IDS, defaults)  # without embeddings it has no search
    return start_as_files_say(model) if model.config.has_embeddings else model


def read_checkpoint(
    checkpoint: CheckpointLike, output: Output, options: ExportKeywords
) -> CheckpointSubject:
    """Read a checkpoint for an output, and choose its tokenizers; see ``export``."""
    kind, level, graphs = output.kind, output.level, graph_options(options)
    extras = Extras(
        graphs.output_attentions, options.get("attention_biases", False),
        options.get("log_probs", False), options.get("text", False),
    )  # fmt: skip
    if extras.text and graphs.opset < OLDEST_OPSET:
        problem = f"text needs {OLDEST_OPSET} or more, not {graphs.opset}"
        raise ConfigError(Message(Problem("opset", problem)))
    check_expect(options, bool(level))
    language_pair = language_pair_of(options, "export")
    output.progress("reading the checkpoint", 0, 1)
    model = read_for(kind, checkpoint, read_options(options, bool(level)))
    if kind != BUNDLE and (kind in TORCH_FILES or file_form(kind).decodes):
        check_greedy_file(model)
    if extras.log_probs and not model.config.has_embeddings:
        raise ConfigError(
            Message(Option("log_probs"), " needs a vocabulary projection, but the model has none.")
        )
    tokenizers, samples = TokenizerFiles(), options.get("samples")
    if kind == BUNDLE or extras.text or samples is not None:
        tokenizers = tokenizer_files(options, files_of(checkpoint))
    subject = CheckpointSubject.of(
        model, options=graphs, tokenizers=tokenizers, level=level, samples=samples,
        expect=options.get("expect"), language_pair=language_pair,
        reads=reads_texts(options, model.reads_texts), extras=extras,
    )  # fmt: skip
    if kind == BUNDLE:
        tokenizers.check(model.config)
        if (subject.samples, subject.expect) != (None, None):
            subject.check_languages(translates=subject.expect is not None)
    return subject


def verify_checkpoint(
    bundle: Path,
    checkpoint: CheckpointLike,
    level: str,
    options: VerifyKeywords,
    progress: Progress,
) -> ParityReport:
    """Compare a bundle with the checkpoint that it was exported from; see ``verify``."""
    language_pair = language_pair_of(options, "verify")
    manifest = open_bundle(bundle)
    if manifest.module is not None:
        raise BundleError(
            Message(
                f"{bundle}: was exported from a custom module; compare it with that module (",
                Option("module"), " on the command line; in Python, pass its ", Option("inputs"),
                ").",
            )
        )  # fmt: skip
    info = info_of_bundle(manifest)
    info.refuse_quantized(bundle)
    model = read_for_decoding(checkpoint, read_options(options), manifest.config)
    info.require_same_model(bundle, model.config)
    subject = CheckpointSubject.of(
        model, options=GraphOptions.choose(), level=level,
        samples=options.get("samples"), expect=options.get("expect"), language_pair=language_pair,
    )  # fmt: skip
    return info.note_own_code(check_bundle(subject, bundle, manifest, progress))
