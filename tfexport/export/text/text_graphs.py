"""Graphs with text in and text out: tokenizers as operators of onnxruntime-extensions.

Some tokenizers are reproduced exactly by those operators; others give different tokens without an
error. So encoding and decoding are first compared with the tokenizer's own library on sample text,
and the export fails if anything differs.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.compose
import onnx_ir as ir
import onnxruntime as ort

from tfexport import graph_io
from tfexport.errors import Message, Option, TokenizerError, join_problems, missing_dependency
from tfexport.export.ir_tools.nodes import parse_model
from tfexport.export.text.tokenizer_files import TokenizerContent, TokenizerFiles, encode_source
from tfexport.model_src.config import TransformerConfig

# Tokenizers and detokenizers are operators of onnxruntime-extensions in ONNX's text form. Inner
# names start with ``text_``, so that they differ from those of the graph that they are merged with.


OLDEST_OPSET = 20  # the first with RegexFullMatch
DOMAIN = "ai.onnx.contrib"
_DOMAINS = {DOMAIN: 1}


# Text to tokens: those of all rows in one vector, with the start and length of each row.
_SENTENCEPIECE_IN = """
    text_no = Constant <value = bool[1] {0}> ()
    text_none = Constant <value = int64[1] {0}> ()
    text_alpha = Constant <value = float[1] {0}> ()
    text_pieces, text_bounds, text_indices = ai.onnx.contrib.SentencepieceTokenizer
        (texts, text_none, text_alpha, text_no, text_no, text_no, text_no)
    text_tokens = Cast <to = 7> (text_pieces)
    text_one = Constant <value = int64[1] {1}> ()
    text_minus_one = Constant <value = int64[1] {-1}> ()
    text_far = Constant <value = int64[1] {9223372036854775807}> ()
    text_starts = Slice (text_bounds, text_none, text_minus_one)
    text_ends = Slice (text_bounds, text_one, text_far)
    text_lengths = Sub (text_ends, text_starts)
"""
_BYTE_LEVEL_IN = """
    text_padded, text_kept = ai.onnx.contrib.GPT2Tokenizer (texts)
    text_lengths = ReduceSum <keepdims = 0> (text_kept, text_axis_1)
    text_flat = Constant <value = int64[1] {-1}> ()
    text_tokens = Reshape (text_padded, text_flat)
    text_size = Shape (text_padded)
    text_rows, text_columns = Split <num_outputs = 2> (text_size)
    text_row_count = Squeeze (text_rows)
    text_row_numbers = Range (text_0, text_row_count, text_1)
    text_starts = Mul (text_row_numbers, text_columns)
"""
# Rows with special tokens and padding. White space is that of Python's str.strip().
_ADD_SPECIAL_TOKENS = r"""
texts_to_rows (string[batch] texts)
    => (int64[batch, source_length] ids, int64[batch, source_length] mask)
{{
    text_0 = Constant <value = int64 {{0}}> ()
    text_1 = Constant <value = int64 {{1}}> ()
    text_axis_1 = Constant <value = int64[1] {{1}}> ()
    text_pad = Constant <value = int64[1] {{{pad}}}> ()
    text_bos = Constant <value = int64 {{{bos}}}> ()
    text_eos = Constant <value = int64 {{{eos}}}> ()
    text_before = Constant <value = int64 {{{before}}}> ()
    text_around = Constant <value = int64 {{{around}}}> ()
    {tokens}
    text_blank = RegexFullMatch <pattern = "[\\x09-\\x0d\\x1c-\\x20\\x{{85}}\\p{{Z}}]*"> (texts)
    text_used = Where (text_blank, text_0, text_lengths)
    text_some = Greater (text_used, text_0)
    text_longer = Add (text_used, text_around)
    text_framed = Where (text_some, text_longer, text_0)
    text_longest = ReduceMax <keepdims = 0> (text_framed)
    text_width = Max (text_longest, text_1)
    text_positions = Range (text_0, text_width, text_1)
    text_framed_column = Unsqueeze (text_framed, text_axis_1)
    text_inside = Less (text_positions, text_framed_column)
    text_inner = Sub (text_positions, text_before)
    text_start_column = Unsqueeze (text_starts, text_axis_1)
    text_places = Add (text_start_column, text_inner)
    text_last = Size (text_tokens)
    text_at_least = Max (text_places, text_0)
    text_at = Min (text_at_least, text_last)
    text_all = Concat <axis = 0> (text_tokens, text_pad)
    text_found = Gather (text_all, text_at)
    text_used_column = Unsqueeze (text_used, text_axis_1)
    text_behind = Less (text_inner, text_used_column)
    text_ended = Where (text_behind, text_found, text_eos)
    text_first = Less (text_inner, text_0)
    text_begun = Where (text_first, text_bos, text_ended)
    ids = Where (text_inside, text_begun, text_pad)
    mask = Cast <to = 7> (text_inside)
}}
"""
_SENTENCEPIECE_OUT = """
    text_out_no = Constant <value = bool[1] {0}> ()
    text_out_line = ai.onnx.contrib.SentencepieceDecoder (text_out_tokens, text_out_no)
"""
_BYTE_LEVEL_OUT = """
    text_out_line = ai.onnx.contrib.BpeDecoder (text_out_tokens)
"""
# The detokenizers take one row at a time, and one of the two fails for an empty row.
_ROWS_TO_TEXT = """
rows_to_texts (int64[rows_batch, rows_length] rows) => (string[rows_batch] translations)
{{
    text_out_eos = Constant <value = int64 {{{eos}}}> ()
    text_out_0 = Constant <value = int64 {{0}}> ()
    text_out_axis = Constant <value = int64 {{1}}> ()
    text_out_axes = Constant <value = int64[1] {{1}}> ()
    text_out_always = Constant <value = bool {{1}}> ()
    text_out_ends = Equal (rows, text_out_eos)
    text_out_ends_int = Cast <to = 7> (text_out_ends)
    text_out_ended = CumSum (text_out_ends_int, text_out_axis)
    text_out_kept = Equal (text_out_ended, text_out_0)
    text_out_kept_int = Cast <to = 7> (text_out_kept)
    text_out_lengths = ReduceSum <keepdims = 0> (text_out_kept_int, text_out_axes)
    text_out_count = Size (text_out_lengths)
    translations = Loop (text_out_count, text_out_always) <body = one_row
        (int64 text_out_i, bool text_out_on) => (bool text_out_go_on, string text_out_text)
        {{
            text_out_go_on = Identity (text_out_on)
            text_out_length = Gather (text_out_lengths, text_out_i)
            text_out_some = Greater (text_out_length, text_out_0)
            text_out_text = If (text_out_some) <
                then_branch = some () => (string text_out_written)
                {{
                    text_out_row = Gather (rows, text_out_i)
                    text_out_keep = Gather (text_out_kept, text_out_i)
                    text_out_tokens = Compress (text_out_row, text_out_keep)
                    {decode}
                    text_out_written = Squeeze (text_out_line)
                }},
                else_branch = none () => (string text_out_nothing)
                {{
                    text_out_nothing = Constant <value_string = ""> ()
                }}
            >
        }}
    >
}}
"""


def text_in(tokenizer: TokenizerContent, config: TransformerConfig) -> onnx.ModelProto:
    """A graph from texts (B,) to ids (B, S) with special tokens and padding, and mask (B, S).

    Raises:
        TokenizerError: there is no operator for this kind of tokenizer.
    """
    sentencepiece = tokenizer.kind == "sentencepiece"
    before, after = int(config.add_source_bos), int(config.add_source_eos)
    ids = config.special_ids
    text = _ADD_SPECIAL_TOKENS.format(
        tokens=_SENTENCEPIECE_IN if sentencepiece else _BYTE_LEVEL_IN,
        pad=ids.pad,
        bos=ids.bos,
        eos=ids.eos,
        before=before,
        around=before + after,
    )
    model = parse_model(text, OLDEST_OPSET, _DOMAINS)
    _set_attributes(model.graph, _tokenizer_attributes(tokenizer))
    return model


def text_out(tokenizer: TokenizerContent, config: TransformerConfig) -> onnx.ModelProto:
    """A graph from rows of ids (B, T) to translations (B,); ids from the end token on are ignored.

    Raises:
        TokenizerError: there is no operator for this kind of tokenizer.
    """
    decode = _SENTENCEPIECE_OUT if tokenizer.kind == "sentencepiece" else _BYTE_LEVEL_OUT
    text = _ROWS_TO_TEXT.format(eos=config.special_ids.eos, decode=decode)
    model = parse_model(text, OLDEST_OPSET, _DOMAINS)
    _set_attributes(model.graph, _tokenizer_attributes(tokenizer))
    return model


def _set_attributes(graph: onnx.GraphProto, attributes: dict[str, dict[str, Any]]) -> None:
    """Set the attributes of the tokenizer's operators, which the text form cannot express."""
    for node in graph.node:
        if node.domain == DOMAIN:
            node.attribute.extend(
                onnx.helper.make_attribute(name, value)
                for name, value in attributes[node.op_type].items()
            )
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _set_attributes(attribute.g, attributes)


def _tokenizer_attributes(tokenizer: TokenizerContent) -> dict[str, dict[str, Any]]:
    """The attributes of each operator of a tokenizer."""
    if tokenizer.kind == "sentencepiece":
        model = {"model": tokenizer.data}
        return {"SentencepieceTokenizer": model, "SentencepieceDecoder": model}
    values = _byte_level(tokenizer)
    vocabulary: dict[str, int] = values["model"]["vocab"]
    added = {token["content"]: token["id"] for token in values.get("added_tokens", [])}
    special = [t["id"] for t in values.get("added_tokens", []) if t.get("special")]
    merges = [m if isinstance(m, str) else " ".join(m) for m in values["model"]["merges"]]
    by_id = {number: token for token, number in {**vocabulary, **added}.items()}
    pieces = [by_id.get(i, "") for i in range(max(by_id) + 1)]
    return {
        "GPT2Tokenizer": {
            "vocab": json.dumps(vocabulary),
            "merges": "\n".join(merges),
            "added_token": "\n".join(f"{token}={number}" for token, number in added.items()),
            "padding_length": -1,
        },
        "BpeDecoder": {
            "id_vocab": "\n".join(pieces),
            "byte_decoder": "\n".join(f"{ord(c)}\t{byte}" for c, byte in _byte_characters()),
            "added_tokens": "\n".join(f"{number}\t{token}" for token, number in added.items()),
            "all_special_ids": "\n".join(map(str, special)),
            "skip_special_tokens": 1,
        },
    }


def _byte_level(tokenizer: TokenizerContent) -> dict[str, Any]:
    found = tokenizer.kind
    if found == "tokenizers":
        values: dict[str, Any] = json.loads(tokenizer.data)
        splitter, joiner = values.get("pre_tokenizer") or {}, values.get("decoder") or {}
        kinds = [part.get("type") for part in (values["model"], splitter, joiner)]
        if kinds == ["BPE", "ByteLevel", "ByteLevel"]:
            return values
        found = f"{kinds[0]} with {kinds[1]}"
    raise TokenizerError(
        f"{tokenizer.subject}: {found} is not reproduced exactly by onnxruntime-extensions; "
        "byte-level BPE and SentencePiece are. Ship the tokenizer with a graph of ids instead."
    )


def _byte_characters() -> Iterable[tuple[str, int]]:
    """The character for each byte. Source: Radford et al. 2019, GPT-2's encoder."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    yield from ((chr(byte), byte) for byte in printable)
    yield from ((chr(256 + i), byte) for i, byte in enumerate(others))


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
        tokenizers: the tokenizers of source and target.
        config: the config of the model.
        samples: texts to compare on, in addition to ``SAMPLES`` and decoded random ids.

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
    if problems := _differences(tokenizers, config, samples):
        subject = tokenizers.content("source").subject
        more = [f"and {len(problems) - 5} more"] if len(problems) > 5 else []
        raise TokenizerError(
            join_problems(
                f"{subject}: onnxruntime-extensions does not reproduce it",
                [*problems[:5], *more],
                "Ship the tokenizer with a graph of ids instead.",
            )
        )


def _differences(
    tokenizers: TokenizerFiles, config: TransformerConfig, samples: Iterable[str]
) -> list[str]:
    """The texts and rows of ids that the operators encode or decode otherwise."""
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
    return problems


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
