"""Generate graphs with text in and text out: tokenizers as operators of onnxruntime-extensions.

Some tokenizers are reproduced exactly by those operators; others give different tokens without an
error. So encoding and decoding are first compared with the tokenizer's own library on sample text,
and the export fails if anything differs.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx
import onnx.compose
import onnx_ir as ir
import onnxruntime as ort

from tfexport import graph_io
from tfexport.errors import (
    Message,
    Option,
    TokenizerError,
    join_problems,
    missing_dependency,
)
from tfexport.export.text.operators import text_in, text_out
from tfexport.export.text.tokenizer_files import TokenizerFiles, encode_source
from tfexport.model_src.config import TransformerConfig

TEXTS, TRANSLATIONS = "texts", "translations"

# Text that tokenizers often treat differently; callers add their own with ``samples``.
SAMPLES = (
    "Good morning!",
    "  two  spaces  ",
    "",
    "   ",
    "a",
    "Don't we'll I've they're",
    "…—“quoted” ‘x’",
    "1234 5.6 €7,89 ½ 10%",
    "Schöne Grüße, Straße, ÄÖÜ",
    "Ça va, garçon ? œuvre",
    "¿Qué? ¡Año!",
    "Привет, мир!",
    "Ελληνικά",
    "日本語のテキスト。",
    "中文，没有空格",
    "한국어 문장",
    "नमस्ते",
    "שלום עולם",
    "مرحبا",
    "e\u0301 combining, \ufb01 ligature, ＦＵＬＬ",
    "😀 👍🏽 👨\u200d👩\u200d👧",
    "tab\there",
    "line\nbreak",
    "no\u00a0break \u200b zero",
    "http://example.org/a?b=c&d=[e]",
    "snake_case camelCase ALLCAPS",
    "x" * 200,
    "#@$%^&*()",
    "▁▁ ▁a",
    "<s> </s> <pad> <unk>",
    "\\n \\t \\",
    "ﬀ İı ß ẞ",
)


def check_reproduced(
    tokenizers: TokenizerFiles, config: TransformerConfig, samples: Iterable[str] = ()
) -> None:
    """Compare the tokenizers' operators with the tokenizers' own libraries.

    Args:
        tokenizers: of both sides.
        config: of the model.
        samples: text, besides ``SAMPLES`` and decoded random ids.

    Raises:
        TokenizerError: no tokenizer is given, or encoding or decoding differs.
        MissingDependencyError: onnxruntime-extensions is not installed.
    """
    _library()
    if not tokenizers:
        raise TokenizerError(
            Message("text in and text out need a tokenizer; give ", Option("tokenizer"), ".")
        )
    if tokenizers.languages is not None:
        raise TokenizerError(
            f"{tokenizers.content('source').subject}: its languages are ids around a text, "
            "for which onnxruntime-extensions has no operator. Ship the tokenizer with a "
            "graph of ids instead."
        )
    source, target = tokenizers.load(config)
    head = text_in(tokenizers.content("source"), config)
    tail = text_out(tokenizers.content("target"), config)
    generator = np.random.default_rng(0)
    random_ids = [
        generator.integers(0, target.size, size=length).tolist()
        for length in (1, 2, 3, 5, 8, 13)
        for _ in range(40)
    ]
    from_ids = [source.decode(row) for row in random_ids if max(row) < source.size]
    texts = [*SAMPLES, *samples, *from_ids]
    problems = []
    encode, decode = _open(head), _open(tail)
    for text in dict.fromkeys(texts):
        expected = encode_source(text, source, config)
        ids, mask = encode.run(None, {TEXTS: np.array([text], dtype=object)})
        if (found := ids[0][mask[0] == 1].tolist()) != expected:
            problems.append(f"{text!r} becomes {found[:12]} instead of {expected[:12]}")
    for row in [*random_ids, *(target.encode(text) for text in texts), []]:
        ids = np.array([[*row, config.eos_id]])
        wanted = target.decode(row[: row.index(config.eos_id)] if config.eos_id in row else row)
        if "\ufffd" in wanted:
            continue  # half a UTF-8 character, of which the operator gives the raw bytes
        (written,) = decode.run(None, {"rows": ids})
        if written[0] != wanted:
            problems.append(f"{row[:12]} becomes {written[0]!r} instead of {wanted!r}")
    if problems:
        subject = tokenizers.content("source").subject
        more = [f"and {len(problems) - 5} more"] if len(problems) > 5 else []
        raise TokenizerError(
            join_problems(
                f"{subject}: onnxruntime-extensions does not reproduce it",
                [*problems[:5], *more],
                "Ship the tokenizer with a graph of ids instead.",
            )
        )


def add_text(
    model: ir.Model, tokenizers: TokenizerFiles, config: TransformerConfig
) -> onnx.ModelProto:
    """Merge tokenizer and detokenizer with a generate graph.

    Returns:
        texts (B,), max_length -> translations (B,), scores (B,).
    """
    generate = ir.to_proto(model)
    head = text_in(tokenizers.content("source"), config)
    tail = text_out(tokenizers.content("target"), config)
    for part in (head, tail):
        part.ir_version = generate.ir_version
        for entry in part.opset_import:
            if not entry.domain:
                entry.version = next(e.version for e in generate.opset_import if not e.domain)
    into = [("ids", graph_io.INPUT_IDS), ("mask", graph_io.ATTENTION_MASK)]
    joined = onnx.compose.merge_models(head, generate, io_map=into)
    whole = onnx.compose.merge_models(joined, tail, io_map=[(graph_io.SEQUENCES, "rows")])
    outputs = {value.name: value for value in whole.graph.output}
    outputs[TRANSLATIONS].type.tensor_type.shape.dim[0].dim_param = graph_io.BATCH
    ordered = [outputs[TRANSLATIONS], outputs[graph_io.SCORES]]
    del whole.graph.output[:]
    whole.graph.output.extend(ordered)
    return whole


def open_text_graph(path: Path) -> ort.InferenceSession:
    """Open a file with operators of onnxruntime-extensions."""
    return _open(str(path))


def _library() -> str:
    try:
        from onnxruntime_extensions import get_library_path
    except ImportError:
        need = "text in and text out need onnxruntime-extensions"
        raise missing_dependency(need, extra="text") from None
    path: str = get_library_path()
    return path


def _open(model: onnx.ModelProto | str) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.register_custom_ops_library(_library())
    options.log_severity_level = 4
    content = model if isinstance(model, str) else model.SerializeToString()
    return ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
