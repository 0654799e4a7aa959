"""The source file of a drawn module, and its spec."""

from tests.drawn_modules.decoder_source import decoder_piece, mask_names, target_mask
from tests.drawn_modules.encoder_source import (
    encoder_piece,
    has_padding,
    inputs_of,
    least_sizes,
    parameters_of,
)
from tests.drawn_modules.layer_source import D_MODEL
from tests.drawn_modules.productions import IDS, Design
from tests.drawn_modules.spec import BATCH, Spec
from tests.drawn_modules.text import Piece, block, class_text, inside, method

_HEAD = """import math
from collections import namedtuple
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

PAD, BOS, EOS = 0, 1, 2
"""
_RESULTS = {
    "tuple": ("(logits, memory)", ""),
    "list": ("[logits, memory]", ""),
    "dict_logits": ('{"logits": logits, "memory": memory}', ""),
    "dict_other": ('{"output": logits, "memory": memory}', '["output"]'),
    "dataclass": ("Output(logits=logits, memory=memory)", ""),
    "namedtuple": ("Result(logits, memory)", ""),
    "flattened": ("logits.reshape(-1, logits.size(-1))", ""),
    "batch_second": ("logits.transpose(0, 1)", ".transpose(0, 1)"),
    "log_softmax": ("F.log_softmax(logits, dim=-1)", ""),
    "with_attention": ("(logits, weights)", ""),
}
_RESULT_CLASSES = {
    "dataclass": "@dataclass\nclass Output:\n    logits: torch.Tensor\n    memory: torch.Tensor",
    "namedtuple": 'Result = namedtuple("Result", ["scores", "memory"])',
}
_LORA = class_text(
    "LoRALinear",
    "base, rank=4, alpha=8",
    [
        "self.base, self.scaling = base, alpha / rank",
        "self.lora_a = nn.Linear(base.in_features, rank, bias=False)",
        "self.lora_b = nn.Linear(rank, base.out_features, bias=False)",
    ],
    ["def forward(self, x):\n    return self.base(x) + self.scaling * self.lora_b(self.lora_a(x))"],
)
_LIGHTNING = class_text(
    "LitModel",
    "model, learning_rate=1e-3",
    [
        "self.model, self.learning_rate = model, learning_rate",
        "self.criterion = nn.CrossEntropyLoss(ignore_index=PAD)",
    ],
    [
        "def forward(self, *args):\n    return self.model(*args)",
        block(
            """
            def training_step(self, batch, batch_idx):
                *inputs, tgt = batch
                logits = self(*inputs, tgt[:, :-1])
                return self.criterion(logits.flatten(0, 1), tgt[:, 1:].flatten())
            """
        ),
        "def configure_optimizers(self):\n"
        "    return torch.optim.Adam(self.parameters(), lr=self.learning_rate)",
    ],
)
_PARALLEL = class_text(
    "Parallel",
    "module",
    ["self.module = module"],
    ["def forward(self, *args, **kwargs):\n    return self.module(*args, **kwargs)"],
)
_NORMS = {"weight_norm": "weight_norm", "spectral_norm": "spectral_norm"}


def source_of(design: Design) -> str:
    """The text of a Python file with the class ``Model`` and the function ``build``."""
    model, classes = _model(design)
    result = _RESULT_CLASSES.get(design.choices["result"])
    texts = [*([result] if result else []), *classes, model, *_wrapper(design), _build(design)]
    if spec_of(design).by_call:
        texts.append(_call(design))
    return _HEAD + "\n\n" + "\n\n\n".join(texts) + "\n"


def spec_of(design: Design) -> Spec:
    """How a drawn module is called, and its sizes."""
    second = design.has("layout", "sequence_first")
    _, picked = _RESULTS.get(design.choices["result"], ("", ""))
    outside = design.has("mask_place", "outside") and bool(mask_names(design))
    least = least_sizes(design)
    most = {"source_length": 11, "frames": 23, "height": 19, "width": 27, "regions": 7}
    return Spec(
        design.seed,
        design.labels,
        inputs_of(design),
        ("target_length", BATCH) if second else (BATCH, "target_length"),
        bool(picked or outside),
        design.source_words,
        least,
        most,
        design.refused_because,
    )


def _call(design: Design) -> str:
    _, picked = _RESULTS.get(design.choices["result"], ("", ""))
    given, lines = parameters_of(design), []
    masks = []
    if design.has("mask_place", "outside"):
        lines, masks = target_mask(design), mask_names(design)
    called = ", ".join([*given, "tgt", *masks])
    head = f"def call(model, {', '.join([*given, 'tgt'])}):\n"
    return head + inside([*lines, f"return model({called}){picked}"], 1)


def _model(design: Design) -> tuple[str, list[str]]:
    """The class ``Model``, and the helper classes before it."""
    apart = design.has("helpers", "submodules")
    encoder = encoder_piece(design, "self.src_embed")
    # Both sides have a module of the same kind under one name only where they are apart.
    decoder = decoder_piece(design, "self.tgt_embed", "weights" if _keeps_weights(design) else "")
    classes = {**encoder.classes, **decoder.classes}
    source_init, target_init = _embeddings(design)
    encoder.init[:0], decoder.init[:0] = source_init, target_init
    init: list[str]
    if apart:
        init = ["self.encoder = Encoder()", "self.decoder = Decoder()"]
        passed, returned = _passed(design), _returned(design)
        classes["Encoder"] = class_text(
            "Encoder", "", encoder.init,
            [method("forward", parameters_of(design), [*encoder.lines, f"return {returned}"])],
        )  # fmt: skip
        classes["Decoder"] = class_text(
            "Decoder", "", decoder.init, [method("forward", passed, [*decoder.lines, "return y"])]
        )
    else:
        init = [*encoder.init, *decoder.init]
    head = _head(design, "self.decoder" if apart else "self")
    init += _sharing(design, apart) + head.init
    classes.update(head.classes)
    methods = _methods(design, encoder, decoder, head)
    return class_text("Model", "", init, methods), list(classes.values())


def _keeps_weights(design: Design) -> bool:
    return design.has("result", "with_attention")


def _passed(design: Design) -> list[str]:
    """The parameters of ``decode`` or of the class ``Decoder``."""
    names = ["tgt", "memory"] + ["src_padding"] * has_padding(design)
    if design.has("mask_place", "outside"):
        return names + mask_names(design)
    if design.has("mask_place", "if_none") and mask_names(design):
        return [*names, *(f"{name}=None" for name in mask_names(design))]
    return names


def _returned(design: Design) -> str:
    return "memory, src_padding" if has_padding(design) else "memory"


def _embeddings(design: Design) -> tuple[list[str], list[str]]:
    """Lines of ``__init__`` for the embeddings of source and target."""
    size = 8 if design.has("embedding", "factorised") else D_MODEL
    padding = ", padding_idx=PAD" if design.has("padding_idx", "padding_idx") else ""
    source = [f"self.src_embed = nn.Embedding({design.source_words}, {size}{padding})"]
    target = [f"self.tgt_embed = nn.Embedding({design.target_words}, {size}{padding})"]
    return (source if design.has("input", *IDS) else []), target


def _sharing(design: Design, apart: bool) -> list[str]:
    if not design.has("embedding", "shared", "all_tied"):
        return []
    if apart:
        return ["self.decoder.tgt_embed = self.encoder.src_embed"]
    return ["self.tgt_embed = self.src_embed"]


def _head(design: Design, owner: str) -> Piece:
    tied = design.has("embedding", "tied_head", "all_tied")
    linear = f"nn.Linear({D_MODEL}, {design.target_words}" + (", bias=False)" if tied else ")")
    wrapper = design.choices["wrapper"]
    if wrapper in _NORMS:
        linear = f"nn.utils.parametrizations.{wrapper}({linear})"
    if wrapper == "lora":
        linear = f"LoRALinear({linear})"
    piece = Piece([f"self.head = {linear}"], ["logits = self.head(y)"])
    if wrapper == "lora":
        piece.classes["LoRALinear"] = _LORA
    if tied:
        piece.init.append(f"self.head.weight = {owner}.tgt_embed.weight")
    return piece


def _methods(design: Design, encoder: Piece, decoder: Piece, head: Piece) -> list[str]:
    """The methods of ``Model``: its forward, helpers, and methods of other meanings."""
    style = design.choices["helpers"]
    parameters = parameters_of(design)
    result, _ = _RESULTS.get(design.choices["result"], ("logits", ""))
    masks = [name for name in _passed(design) if "mask" in name or "tgt_padding" in name]
    arguments = [*parameters, "tgt", *masks]
    given = [name.removesuffix("=None") for name in _passed(design)]
    returned = _returned(design)
    finish = [*head.lines, f"return {result}"]
    if style == "none":
        methods = [method("forward", arguments, [*encoder.lines, *decoder.lines, *finish])]
    elif style == "submodules":
        call = f"y = self.decoder({', '.join(given)})"
        lines = [f"{returned} = self.encoder({', '.join(parameters)})", call, *finish]
        methods = [method("forward", arguments, lines)]
    else:
        methods = _with_helpers(design, encoder, decoder, head, (arguments, given, result))
    return [*methods, *_others(design)]


def _with_helpers(
    design: Design, encoder: Piece, decoder: Piece, head: Piece,
    call: tuple[list[str], list[str], str],
) -> list[str]:  # fmt: skip
    arguments, given, result = call
    parameters, returned = parameters_of(design), _returned(design)
    in_decode = design.has("helpers", "head_in_decode")
    name = "logits" if in_decode else "y"
    weights = ", weights" if _keeps_weights(design) else ""
    decoded = [*decoder.lines, *(head.lines if in_decode else []), f"return {name}{weights}"]
    encoded = list(encoder.lines)
    if design.has("attention", "torch_transformer"):
        turn = ".transpose(0, 1)" if design.has("layout", "transposed_around") else ""
        padding = ", src_key_padding_mask=src_padding" if has_padding(design) else ""
        encoded.append(f"memory = self.transformer.encoder(memory{turn}{padding}){turn}")
    lines = [
        f"{returned} = self.encode({', '.join(parameters)})",
        f"{name}{weights} = self.decode({', '.join(given)})",
        *([] if in_decode else head.lines),
        f"return {result}",
    ]
    return [
        method("encode", parameters, [*encoded, f"return {returned}"]),
        method("decode", _passed(design), decoded),
        method("forward", arguments, lines),
    ]


def _others(design: Design) -> list[str]:
    kind = design.choices["methods"]
    given = ", ".join(parameters_of(design))
    if kind in ("greedy_decode", "generate"):
        return [
            block(
                f"""
                @torch.no_grad()
                def {kind}(self, {given}, max_len=20):
                    ys = torch.full(({parameters_of(design)[0]}.size(0), 1), BOS)
                    for _ in range(max_len):
                        scores = self({given}, ys)
                        ys = torch.cat([ys, scores[:, -1:].argmax(-1)], dim=1)
                    return ys
                """
            )
        ]
    if kind == "step_and_start":
        return [
            "def start(self):\n    self.epoch = 0",
            "def step(self, loss, optimizer):\n    loss.backward()\n    optimizer.step()",
        ]
    if kind == "raising":
        return [
            "def encode(self, *args):\n    raise NotImplementedError",
            "def decode(self, *args):\n    raise NotImplementedError",
        ]
    return []


def _wrapper(design: Design) -> list[str]:
    return {"lightning": [_LIGHTNING], "data_parallel": [_PARALLEL]}.get(
        design.choices["wrapper"], []
    )


def _build(design: Design) -> str:
    wrapped = {
        "lightning": "LitModel(Model())",
        "data_parallel": "Parallel(Model())",
        "compiled": 'torch.compile(Model(), backend="eager")',
    }.get(design.choices["wrapper"], "Model()")
    return f"def build():\n    return {wrapped}"
