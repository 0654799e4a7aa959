"""Source of norms, feed-forward parts, and layers of encoder and decoder."""

from tests.drawn_modules.attention_source import attention_piece, separate_masks
from tests.drawn_modules.productions import Design
from tests.drawn_modules.text import Piece, block, class_text, method

D_MODEL, D_FF = 16, 24

_RMS = class_text(
    "RMSNorm",
    "size, eps=1e-6",
    ["self.eps = eps", "self.weight = nn.Parameter(torch.ones(size))"],
    [
        block(
            """
            def forward(self, x):
                variance = x.pow(2).mean(-1, keepdim=True)
                return x * torch.rsqrt(variance + self.eps) * self.weight
            """
        )
    ],
)
_SCALE = class_text(
    "ScaleNorm",
    "size, eps=1e-5",
    ["self.eps = eps", "self.scale = nn.Parameter(torch.tensor(float(size) ** 0.5))"],
    [
        block(
            """
            def forward(self, x):
                norm = torch.norm(x, dim=-1, keepdim=True).clamp(min=self.eps)
                return self.scale * x / norm
            """
        )
    ],
)
_CLASS_OF_NORM = {"rms": "RMSNorm", "scale": "ScaleNorm"}


def norm_piece(design: Design) -> Piece:
    """The class of a design's norm, if it is not torch's."""
    texts = {"rms": {"RMSNorm": _RMS}, "scale": {"ScaleNorm": _SCALE}}
    return Piece(classes=texts.get(design.choices["norm"], {}))


def norm_class(design: Design) -> str:
    """The name of a design's norm."""
    return _CLASS_OF_NORM.get(design.choices["norm"], "nn.LayerNorm")


def is_post(design: Design) -> bool:
    """Whether norms come after the sums."""
    return design.has("norm", "post_layer")


def uses_multihead(design: Design, encoder: bool) -> bool:
    """Whether layers written by hand call ``nn.MultiheadAttention``."""
    return separate_masks(design) or (encoder and design.has("attention", "additive"))


def feed_forward_piece(design: Design) -> Piece:
    """The class ``FeedForward``."""
    kind = design.choices["feed_forward"]
    activation = "gelu" if kind == "gelu" else "relu"
    if design.has("wrapper", "sequential_subclass"):
        layers = f"nn.Linear(size, hidden), nn.{activation.upper()}(), nn.Linear(hidden, size)"
        layers = layers.replace("RELU", "ReLU")
        text = (
            "class FeedForward(nn.Sequential):\n    def __init__(self, size, hidden):\n"
            f"        super().__init__({layers})"
        )
        return Piece(classes={"FeedForward": text})
    if kind == "glu":
        init = [
            "self.gate = nn.Linear(size, hidden, bias=False)",
            "self.up = nn.Linear(size, hidden, bias=False)",
            "self.down = nn.Linear(hidden, size, bias=False)",
        ]
        lines = ["return self.down(F.silu(self.gate(x)) * self.up(x))"]
    else:
        init = ["self.fc1 = nn.Linear(size, hidden)", "self.fc2 = nn.Linear(hidden, size)"]
        lines = [f"return self.fc2(F.{activation}(self.fc1(x)))"]
    text = class_text("FeedForward", "size, hidden", init, [method("forward", ["x"], lines)])
    return Piece(classes={"FeedForward": text})


_CONV_FEED_FORWARD = class_text(
    "ConvFeedForward",
    "size, hidden",
    [
        "self.conv1 = nn.Conv1d(size, hidden, 3, padding=1)",
        "self.conv2 = nn.Conv1d(hidden, size, 1)",
    ],
    [
        block(
            """
            def forward(self, x):
                return self.conv2(F.relu(self.conv1(x.transpose(1, 2)))).transpose(1, 2)
            """
        )
    ],
)


def encoder_layer_piece(design: Design) -> Piece:
    """The class ``EncoderLayer``, called with rows and a mask of the source."""
    piece = Piece()
    if not uses_multihead(design, True):
        piece.add(attention_piece(design))
    piece.add(norm_piece(design))
    conv = design.has("feed_forward", "conv_along_source")
    piece.add(
        Piece(classes={"ConvFeedForward": _CONV_FEED_FORWARD})
        if conv
        else feed_forward_piece(design)
    )
    feed_forward = "ConvFeedForward" if conv else "FeedForward"
    init = [
        "self.self_attn = " + _attention("self", design, encoder=True),
        f"self.feed_forward = {feed_forward}(d_model, d_ff)",
        *(f"self.norm{i} = {norm_class(design)}(d_model)" for i in (1, 2)),
    ]
    attended = (
        "self.self_attn({x}, {x}, {x}, key_padding_mask=mask, need_weights=False)[0]"
        if uses_multihead(design, True)
        else "self.self_attn({x}, {x}, mask)"
    )
    lines = _sublayers(design, "x", [attended, "self.feed_forward({x})"])
    forward = method("forward", ["x", "mask=None"], [*lines, "return x"])
    text = class_text("EncoderLayer", "d_model, heads, d_ff", init, [forward])
    piece.classes["EncoderLayer"] = text
    return piece


def decoder_layer_piece(design: Design) -> Piece:
    """The class ``DecoderLayer``, called with rows, memory, and the masks of a design."""
    piece = attention_piece(design)
    piece.add(norm_piece(design))
    piece.add(feed_forward_piece(design))
    init = [
        "self.self_attn = " + _attention("self", design, encoder=False),
        "self.cross_attn = " + _attention("cross", design, encoder=False),
        "self.feed_forward = FeedForward(d_model, d_ff)",
        *(f"self.norm{i} = {norm_class(design)}(d_model)" for i in (1, 2, 3)),
    ]
    if separate_masks(design):
        arguments = ["y", "memory", "tgt_mask=None", "tgt_padding=None", "src_padding=None"]
        parts = [
            "self.self_attn({x}, {x}, {x}, attn_mask=tgt_mask, key_padding_mask=tgt_padding)[0]",
            "self.cross_attn({x}, memory, memory, key_padding_mask=src_padding)[0]",
        ]
    else:
        arguments = ["y", "memory", "tgt_mask=None", "src_mask=None"]
        parts = ["self.self_attn({x}, {x}, tgt_mask)", "self.cross_attn({x}, memory, src_mask)"]
    lines = _sublayers(design, "y", [*parts, "self.feed_forward({x})"])
    forward = method("forward", arguments, [*lines, "return y"])
    text = class_text("DecoderLayer", "d_model, heads, d_ff", init, [forward])
    piece.classes["DecoderLayer"] = text
    return piece


def _attention(side: str, design: Design, encoder: bool) -> str:
    if uses_multihead(design, encoder):
        return "nn.MultiheadAttention(d_model, heads, batch_first=True)"
    causal = ", causal=True" if side == "self" and not encoder else ""
    own = ", self_attention=True" if side == "self" else ""
    return f"Attention(d_model, heads{own}{causal})"


def _sublayers(design: Design, name: str, parts: list[str]) -> list[str]:
    lines = []
    for i, part in enumerate(parts, 1):
        if is_post(design):
            lines.append(f"{name} = self.norm{i}({name} + {part.format(x=name)})")
        else:
            lines.append(f"z = self.norm{i}({name})")
            lines.append(f"{name} = {name} + {part.format(x='z')}")
    return lines


def torch_options(design: Design) -> str:
    """The options of torch's own layers, as source text."""
    options = [f"{D_MODEL}", f"{design.heads}"]
    more = [f"dim_feedforward={D_FF}"]
    if design.has("feed_forward", "gelu"):
        more.append('activation="gelu"')
    if design.has("layout", "batch_first"):
        more.append("batch_first=True")
    if not is_post(design):
        more.append("norm_first=True")
    return ", ".join([*options, *more])


def final_norm(design: Design) -> str:
    """The last norm of a stack; None where a design has none."""
    return "None" if design.has("last", "no_norm") else f"{norm_class(design)}({D_MODEL})"
