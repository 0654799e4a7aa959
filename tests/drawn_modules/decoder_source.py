"""Source of the decoder's side: target ids, memory and masks to rows before the head, ``y``."""

from tests.drawn_modules.attention_source import (
    ADDED,
    VISIBLE,
    attention_piece,
    mask_form,
    separate_masks,
)
from tests.drawn_modules.encoder_source import has_padding, source_mask
from tests.drawn_modules.layer_source import (
    D_FF,
    D_MODEL,
    decoder_layer_piece,
    final_norm,
    norm_piece,
    torch_options,
)
from tests.drawn_modules.position_source import FIXED_LENGTH, target_positions
from tests.drawn_modules.productions import RECURRENT, TORCH_LAYERS, Design
from tests.drawn_modules.text import Piece

_CAUSAL = {
    "triu_bool": ["tgt_mask = torch.triu(torch.ones(t, t, dtype=torch.bool), diagonal=1)"],
    "tril_bool": ["tgt_mask = torch.tril(torch.ones(t, t)).bool()"],
    "tril_out": [
        "tgt_mask = torch.ones(t, t, dtype=torch.bool)",
        "tgt_mask = torch.tril(tgt_mask, out=tgt_mask)",
    ],
    "float_inf": ['tgt_mask = torch.full((t, t), float("-inf")).triu(1)'],
    "square_subsequent": ["tgt_mask = nn.Transformer.generate_square_subsequent_mask(t)"],
    "large_negative": ["tgt_mask = (1.0 - torch.tril(torch.ones(t, t))) * -1e9"],
    "cached_buffer": ["tgt_mask = self.causal[:t, :t]"],
    "arange": ["steps = torch.arange(t)", "tgt_mask = steps[None, :] > steps[:, None]"],
}


def target_mask(design: Design) -> list[str]:
    """Lines that make ``tgt_mask``, and ``tgt_padding`` where it is given by itself."""
    kind = design.choices["target_mask"]
    if kind not in _CAUSAL:
        return []
    axis = 0 if design.has("layout", "sequence_first") else 1
    lines = [f"t = tgt.size({axis})", *_CAUSAL[kind]]
    form = mask_form(design)
    if separate_masks(design) and form == VISIBLE:
        lines.append("tgt_mask = ~tgt_mask")
    if not design.has("target_padding", "own"):
        return lines
    if separate_masks(design):
        turned = ".t()" if axis == 0 else ""
        return [*lines, f"tgt_padding = (tgt == PAD){turned}"]
    combined = {
        VISIBLE: "tgt_mask = tgt_mask & (tgt != PAD)[:, None, None, :]",
        ADDED: "tgt_mask = tgt_mask + (tgt == PAD)[:, None, None, :] * -1e9",
    }
    return [*lines, combined.get(form, "tgt_mask = tgt_mask | (tgt == PAD)[:, None, None, :]")]


def mask_names(design: Design) -> list[str]:
    """The masks of the target that ``target_mask`` makes."""
    if not target_mask(design):
        return []
    padded = design.has("target_padding", "own") and separate_masks(design)
    return ["tgt_mask", "tgt_padding"] if padded else ["tgt_mask"]


def decoder_piece(design: Design, embedding: str, kept_weights: str) -> Piece:
    """The lines from target ids to ``y``.

    Args:
        design: of the module.
        embedding: the attribute of the embedding of the target, as source text.
        kept_weights: the attribute that keeps weights of attention; empty for none.
    """
    piece = Piece()
    fixed = design.has("positions", "fixed_length")
    if fixed:
        piece.lines += [
            "length = tgt.size(1)",
            f"tgt = F.pad(tgt, (0, {FIXED_LENGTH} - length), value=PAD)",
        ]
    piece.add(_masks(design))
    piece.add(_embedded(design, embedding))
    piece.add(target_positions(design))
    piece.add(_body(design))
    if kept_weights:
        piece.lines.append(f"{kept_weights} = self.decoder_layers[-1].cross_attn.weights")
    if fixed:
        piece.lines.append("y = y[:, :length]")
    piece.add(_after(design))
    return piece


def _masks(design: Design) -> Piece:
    lines = target_mask(design)
    piece = Piece()
    if design.has("target_mask", "cached_buffer"):
        mask = "torch.ones(64, 64, dtype=torch.bool).tril()"
        piece.init.append(f'self.register_buffer("causal", {mask})')
    if design.has("mask_place", "inside"):
        piece.lines += lines
    elif design.has("mask_place", "if_none"):
        # A mask of the target's padding depends on ids, so it is made in any case.
        piece.lines += ["if tgt_mask is None:", *(f"    {line}" for line in lines)]
    if has_padding(design) and not design.has("attention", *TORCH_LAYERS):
        piece.lines += source_mask(design, encoder=False)
    return piece


def _embedded(design: Design, embedding: str) -> Piece:
    scale = f" * math.sqrt({D_MODEL})" if design.has("embedding_scale", "sqrt_d") else ""
    if design.has("embedding", "factorised"):
        init = [f"self.tgt_widen = nn.Linear(8, {D_MODEL}, bias=False)"]
        return Piece(init, [f"y = self.tgt_widen({embedding}(tgt)){scale}"])
    return Piece(lines=[f"y = {embedding}(tgt){scale}"])


def _body(design: Design) -> Piece:
    if design.has("decoder", *RECURRENT):
        return _recurrent(design)
    if design.has("decoder", "running_mean"):
        return _running_mean(design)
    if design.has("decoder", "causal_conv"):
        return _causal_conv(design)
    if design.has("attention", *TORCH_LAYERS):
        return _torch_layers(design)
    piece = decoder_layer_piece(design)
    sizes = f"{D_MODEL}, {design.heads}, {D_FF}"
    piece.init.append(
        "self.decoder_layers = nn.ModuleList("
        f"[DecoderLayer({sizes}) for _ in range({design.layers})])"
    )
    names = mask_names(design)
    masks = [f", {name}={name}" for name in names]
    if has_padding(design):
        masks.append(", src_padding=src_mask" if separate_masks(design) else ", src_mask=src_mask")
    piece.lines += [
        "for layer in self.decoder_layers:",
        f"    y = layer(y, memory{''.join(masks)})",
    ]
    if not design.has("last", "no_norm"):
        piece.init.append(f"self.decoder_norm = {final_norm(design)}")
        piece.lines.append("y = self.decoder_norm(y)")
    return piece


def _torch_layers(design: Design) -> Piece:
    piece = norm_piece(design)
    kind = design.choices["attention"]
    options = torch_options(design)
    turn = ".transpose(0, 1)" if design.has("layout", "transposed_around") else ""
    padded = "tgt_padding" in mask_names(design)
    given = "tgt_mask=tgt_mask"
    given += ", tgt_key_padding_mask=tgt_padding" if padded else ""
    given += ", memory_key_padding_mask=src_padding" if has_padding(design) else ""
    if kind == "torch_transformer":
        wide = options.replace(
            "dim_feedforward", f"{design.layers}, {design.layers}, dim_feedforward"
        )
        piece.init.append(f"self.transformer = nn.Transformer({wide})")
        if design.has("helpers", "none"):
            given += ", src_key_padding_mask=src_padding" if has_padding(design) else ""
            piece.lines.append(f"y = self.transformer(memory{turn}, y{turn}, {given}){turn}")
            return piece
        piece.lines.append(f"y = self.transformer.decoder(y{turn}, memory{turn}, {given}){turn}")
        return piece
    piece.init.append(f"layer = nn.TransformerDecoderLayer({options})")
    if kind == "torch_decoder":
        piece.init.append(
            "self.decoder_layers = nn.TransformerDecoder("
            f"layer, {design.layers}, {final_norm(design)})"
        )
        piece.lines.append(f"y = self.decoder_layers(y{turn}, memory{turn}, {given}){turn}")
        return piece
    piece.init.pop()
    piece.init += [
        "self.decoder_layers = nn.ModuleList(",
        f"    [nn.TransformerDecoderLayer({options}) for _ in range({design.layers})]",
        ")",
    ]
    piece.lines += [
        *([f"y, memory = y{turn}, memory{turn}"] if turn else []),
        "for layer in self.decoder_layers:",
        f"    y = layer(y, memory, {given})",
        *([f"y = y{turn}"] if turn else []),
    ]
    if not design.has("last", "no_norm"):
        piece.init.append(f"self.decoder_norm = {final_norm(design)}")
        piece.lines.append("y = self.decoder_norm(y)")
    return piece


def _cross(design: Design) -> tuple[Piece, str]:
    """Attention of decoders that are no Transformers: its class, and its call for ``{}``."""
    piece = attention_piece(design)
    mask = "src_mask" if has_padding(design) else ""
    if separate_masks(design):
        piece.init.append(
            f"self.cross_attn = nn.MultiheadAttention({D_MODEL}, {design.heads}, batch_first=True)"
        )
        given = f", key_padding_mask={mask}" if mask else ""
        return piece, f"self.cross_attn({{}}, memory, memory{given})[0]"
    piece.init.append(f"self.cross_attn = Attention({D_MODEL}, {design.heads})")
    return piece, f"self.cross_attn({{}}, memory{mask and ', '}{mask})"


def _recurrent(design: Design) -> Piece:
    piece, attended = _cross(design)
    kind = design.choices["decoder"]
    if kind == "lstm_cell_loop":
        piece.init.append(f"self.cell = nn.LSTMCell({D_MODEL}, {D_MODEL})")
        piece.lines += [
            "hidden = memory.mean(dim=1)",
            "cell, outputs = torch.zeros_like(hidden), []",
            "for i in range(tgt.shape[1]):",
            "    hidden, cell = self.cell(y[:, i], (hidden, cell))",
            f"    outputs.append({attended.format('hidden.unsqueeze(1)')})",
            "y = torch.cat(outputs, dim=1)",
        ]
        return piece
    if kind == "cell_loop":
        piece.init.append(f"self.cell = nn.GRUCell({2 * D_MODEL}, {D_MODEL})")
        piece.lines += [
            "state, outputs = memory.mean(dim=1), []",
            "for i in range(tgt.size(1)):",
            f"    context = {attended.format('state.unsqueeze(1)')}.squeeze(1)",
            "    state = self.cell(torch.cat([y[:, i], context], dim=-1), state)",
            "    outputs.append(state)",
            "y = torch.stack(outputs, dim=1)",
        ]
        return piece
    name = "GRU" if kind == "gru" else "LSTM"
    layers = design.layers
    piece.init += [
        f"self.decoder_rnn = nn.{name}({D_MODEL}, {D_MODEL}, {layers}, batch_first=True)",
        f"self.combine = nn.Linear({2 * D_MODEL}, {D_MODEL})",
    ]
    if design.seed % 2:
        piece.init.append(f"self.bridge = nn.Linear({D_MODEL}, {D_MODEL})")
        piece.lines.append(
            "start = torch.tanh(self.bridge(memory.mean(dim=1)))"
            f".unsqueeze(0).repeat({layers}, 1, 1)"
        )
        start = ", start" if kind == "gru" else ", (start, torch.zeros_like(start))"
    else:
        start = ""
    piece.lines += [
        f"y, _ = self.decoder_rnn(y{start})",
        f"context = {attended.format('y')}",
        "y = torch.tanh(self.combine(torch.cat([y, context], dim=-1)))",
    ]
    return piece


def _running_mean(design: Design) -> Piece:
    piece, attended = _cross(design)
    piece.init += [
        f"self.mean_gate = nn.Linear({2 * D_MODEL}, {D_MODEL})",
        f"self.mid_norm = nn.LayerNorm({D_MODEL})",
    ]
    piece.lines += [
        "counts = torch.arange(1, y.size(1) + 1, device=y.device).unsqueeze(-1)",
        "average = torch.cumsum(y, dim=1) / counts",
        "gate = torch.sigmoid(self.mean_gate(torch.cat([y, average], dim=-1)))",
        "y = self.mid_norm(gate * y + (1 - gate) * average)",
        f"y = y + {attended.format('y')}",
    ]
    return piece


def _causal_conv(design: Design) -> Piece:
    piece, attended = _cross(design)
    piece.init += [
        "self.convs = nn.ModuleList(",
        f"    [nn.Conv1d({D_MODEL}, {2 * D_MODEL}, 3) for _ in range({design.layers})]",
        ")",
    ]
    piece.lines += [
        "for conv in self.convs:",
        "    z = conv(F.pad(y.transpose(1, 2), (2, 0)))",
        "    y = y + F.glu(z, dim=1).transpose(1, 2)",
        f"y = y + {attended.format('y')}",
    ]
    return piece


def _after(design: Design) -> Piece:
    """What comes between the decoder and the head."""
    piece = Piece()
    if design.has("last", "added_after_last_norm"):
        piece.init.append(f"self.extra = nn.Linear({D_MODEL}, {D_MODEL})")
        piece.lines.append("y = y + F.relu(self.extra(y))")
    if design.has("flow", "if_training"):
        piece.lines += ["if self.training:", "    y = y + 0.01 * torch.randn_like(y)"]
        piece.lines.append("y = F.dropout(y, p=0.1, training=self.training)")
    if design.has("flow", "assert_shapes"):
        piece.lines.append('assert y.dim() == 3, f"expected three axes, got {y.dim()}"')
        piece.lines.append(f"assert y.size(-1) == {D_MODEL}")
    if design.has("flow", "layer_made"):
        piece.lines += [f"mixing = nn.Linear({D_MODEL}, {D_MODEL})", "y = y + mixing(y)"]
    if design.has("wrapper", "script_part"):
        text = (
            "class Squash(nn.Module):\n    def forward(self, x: torch.Tensor) -> torch.Tensor:\n"
            "        return torch.tanh(x) * 2.0"
        )
        piece.add(
            Piece(
                ["self.squash = torch.jit.script(Squash())"],
                ["y = self.squash(y)"],
                {"Squash": text},
            )
        )
    return piece
