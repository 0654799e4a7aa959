"""Source of positions that are added to embeddings."""

from tests.drawn_modules.productions import IDS, Design
from tests.drawn_modules.text import Piece, block, class_text

_D, LONGEST = 16, 256
FIXED_LENGTH = 16  # of the target, where a design pads it

_SINUSOIDS = block(
    """
    def sinusoids(length, d_model):
        position = torch.arange(length).unsqueeze(1).float()
        div_term = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(length, d_model)
        pe[:, 0::2] = torch.sin(position * div_term)
        pe[:, 1::2] = torch.cos(position * div_term)
        return pe
    """
)
_REBUILT = block(
    """
    def position_table(length, d_model):
        angles = torch.arange(length).float()[:, None] / torch.pow(
            10000, torch.arange(0, d_model, 2).float() / d_model
        )
        return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
    """
)


def _encoding(sequence_first: bool, batch_first_data: bool) -> str:
    """A class that adds sinusoids; its buffer is (1, L, d) or (L, 1, d)."""
    axis = 1 if sequence_first else 0
    if batch_first_data:
        used = (
            "self.pe[: x.size(1)].transpose(0, 1)" if sequence_first else "self.pe[:, : x.size(1)]"
        )
    else:
        used = (
            "self.pe[: x.size(0)]" if sequence_first else "self.pe[:, : x.size(0)].transpose(0, 1)"
        )
    return class_text(
        "PositionalEncoding",
        "d_model, dropout=0.1, max_len=256",
        [
            "self.dropout = nn.Dropout(dropout)",
            f'self.register_buffer("pe", sinusoids(max_len, d_model).unsqueeze({axis}))',
        ],
        [f"def forward(self, x):\n    return self.dropout(x + {used})"],
    )


def source_positions(design: Design) -> Piece:
    """Positions of the source, added to ``x``."""
    one_line = design.has("input", *IDS, "frames")
    if not one_line and not design.has("input", "image_width"):
        return Piece()
    return _added(design, "x", "src")


def target_positions(design: Design) -> Piece:
    """Positions of the target, added to ``y``."""
    return _added(design, "y", "tgt")


def _added(design: Design, name: str, side: str) -> Piece:
    kind = design.choices["positions"]
    second = design.has("layout", "sequence_first")
    axis = 0 if second else 1
    if kind in ("sinusoid_buffer", "sinusoid_sequence_first"):
        text = _encoding(kind == "sinusoid_sequence_first", not second)
        return Piece(
            [f"self.{side}_pos = PositionalEncoding({_D})"],
            [f"{name} = self.{side}_pos({name})"],
            {"sinusoids": _SINUSOIDS, "PositionalEncoding": text},
        )
    if kind == "learned_arange":
        lines = [f"places = torch.arange({name}.size({axis}), device={name}.device)"]
        lines.append(f"{name} = {name} + self.{side}_pos(places)" + (".unsqueeze(1)" * second))
        return Piece([f"self.{side}_pos = nn.Embedding({LONGEST}, {_D})"], lines)
    if kind == "rebuilt_in_forward":
        added = f"{name} = {name} + position_table({name}.size(1), {_D}).to({name}.device)"
        return Piece([], [added], {"position_table": _REBUILT})
    if kind == "fixed_length" and side == "tgt":
        init = [f"self.tgt_pos = nn.Parameter(torch.randn(1, {FIXED_LENGTH}, {_D}) * 0.1)"]
        return Piece(init, [f"{name} = {name} + self.tgt_pos"])
    if kind in ("learned_parameter", "fixed_length"):
        init = [f"self.{side}_pos = nn.Parameter(torch.randn(1, {LONGEST}, {_D}) * 0.1)"]
        return Piece(init, [f"{name} = {name} + self.{side}_pos[:, : {name}.size(1)]"])
    return Piece()
