"""Source of the encoder's side: inputs, strides, positions, layers; and masks of the source.

The lines leave ``memory`` (b, s, d), or (s, b, d) where a design is batch second, and
``src_padding`` (b, s), true where there is nothing, if a design has such a mask.
"""

from tests.drawn_modules.layer_source import (
    D_FF,
    D_MODEL,
    encoder_layer_piece,
    final_norm,
    norm_piece,
    torch_options,
)
from tests.drawn_modules.position_source import source_positions
from tests.drawn_modules.productions import IDS, IMAGES, Design
from tests.drawn_modules.spec import BATCH, InputSpec
from tests.drawn_modules.text import Piece

FEATURES, PATCH, HEIGHT, WIDTH = 6, 4, 8, 20


def inputs_of(design: Design) -> tuple[InputSpec, ...]:
    """The inputs of the forward, in order."""
    kind, mask = design.choices["input"], design.choices["source_mask"]
    length = "frames" if kind == "frames" else "source_length"
    first = {
        "frames": InputSpec("features", "float32", (BATCH, "frames", FEATURES), "floats"),
        "image_width": InputSpec("image", "float32", (BATCH, 1, HEIGHT, "width"), "floats"),
        "image_both": InputSpec("image", "float32", (BATCH, 1, "height", "width"), "floats"),
        "image_fixed": InputSpec("image", "float32", (BATCH, 1, HEIGHT, WIDTH), "floats"),
        "regions": InputSpec("regions", "float32", (BATCH, "regions", FEATURES), "floats"),
    }
    axes: tuple[int | str, ...] = (BATCH, length)
    if design.has("layout", "sequence_first"):
        axes = (length, BATCH)
    name = "src" if design.has("source_name", "src") else "input_ids"
    ids = InputSpec(name, "int64", axes, "ids", design.source_words)
    given = [first.get(kind, ids)]
    if kind == "ids_and_features":
        given.append(InputSpec("regions", "float32", (BATCH, "regions", FEATURES), "floats"))
    if mask == "attention_mask":
        given.append(InputSpec("attention_mask", "int64", axes, "mask"))
    if mask == "lengths":
        given.append(InputSpec("lengths", "int64", (BATCH,), "lengths"))
    if mask == "relative_lengths":
        given.append(InputSpec("relative_lengths", "float32", (BATCH,), "relative_lengths"))
    return tuple(given)


def parameters_of(design: Design) -> list[str]:
    """The names of the forward's parameters for the inputs."""
    return [{"input_ids": "src"}.get(each.name, each.name) for each in inputs_of(design)]


def encoder_piece(design: Design, embedding: str) -> Piece:
    """The lines from inputs to memory.

    Args:
        design: of the module.
        embedding: the attribute of the embedding of the source, as source text.
    """
    piece = _padding(design)
    piece.add(_front(design, embedding))
    piece.add(source_positions(design))
    piece.add(_body(design))
    piece.lines.append("memory = x")
    if design.has("input", "ids_and_features"):
        piece.init.append(f"self.region_proj = nn.Linear({FEATURES}, {D_MODEL})")
        piece.lines.append("memory = torch.cat([memory, self.region_proj(regions)], dim=1)")
        if has_padding(design):
            piece.lines.append(
                "src_padding = F.pad(src_padding, (0, regions.size(1)), value=False)"
            )
    return piece


def has_padding(design: Design) -> bool:
    """Whether a design has a mask of the source."""
    return not design.has("source_mask", "none")


def _padding(design: Design) -> Piece:
    turned = ".t()" if design.has("layout", "sequence_first") else ""
    kind = design.choices["source_mask"]
    of = "src" if design.has("input", *IDS) else "features"
    if kind == "inside":
        return Piece(lines=[f"src_padding = (src == PAD){turned}"])
    if kind == "attention_mask":
        return Piece(lines=[f"src_padding = (attention_mask == 0){turned}"])
    count = f"steps = torch.arange({of}.size(1), device={of}.device)"
    if kind == "lengths":
        lines = [count, "src_padding = steps[None, :] >= lengths[:, None]"]
        if design.has("flow", "assert_lengths"):
            lines.insert(0, f"assert lengths.max().item() <= {of}.size(1)")
        return Piece(lines=lines)
    if kind == "relative_lengths":
        lines = [
            f"lengths = torch.round(relative_lengths * {of}.size(1))",
            count,
            "src_padding = steps[None, :] >= lengths[:, None]",
        ]
        return Piece(lines=lines)
    return Piece()


def _front(design: Design, embedding: str) -> Piece:
    if design.has("input", *IDS):
        return _of_ids(design, embedding)
    if design.has("input", "frames"):
        return _of_frames(design)
    if design.has("input", "regions"):
        return Piece(
            [f"self.input_proj = nn.Linear({FEATURES}, {D_MODEL})"],
            ["x = self.input_proj(regions)"],
        )
    return _of_images(design)


def _of_ids(design: Design, embedding: str) -> Piece:
    scale = f" * math.sqrt({D_MODEL})" if design.has("embedding_scale", "sqrt_d") else ""
    piece = Piece(lines=[f"x = {embedding}(src){scale}"])
    if design.has("embedding", "factorised"):
        piece.init.append(f"self.src_widen = nn.Linear(8, {D_MODEL}, bias=False)")
        piece.lines = ["x = self.src_widen(" + f"{embedding}(src)){scale}"]
    if design.has("stride", "conv"):
        piece.init.append(f"self.shorten = nn.Conv1d({D_MODEL}, {D_MODEL}, 3, stride=2, padding=1)")
        piece.lines.append("x = F.relu(self.shorten(x.transpose(1, 2))).transpose(1, 2)")
        piece.lines += _shorter_mask(design, ["[:, ::2]"])
    return piece


def _shorter_mask(design: Design, cuts: list[str]) -> list[str]:
    return [f"src_padding = src_padding{''.join(cuts)}"] if has_padding(design) else []


def _of_frames(design: Design) -> Piece:
    kind = design.choices["stride"]
    conv = "nn.Conv1d({}, {}, kernel_size=3, stride=2, padding=1)"
    if kind in ("conv", "conv_twice"):
        count = 2 if kind == "conv_twice" else 1
        init = [f"self.conv1 = {conv.format(FEATURES, D_MODEL)}"]
        lines = ["x = F.gelu(self.conv1(features.transpose(1, 2)))"]
        if count > 1:
            init.append(f"self.conv2 = {conv.format(D_MODEL, D_MODEL)}")
            lines.append("x = F.gelu(self.conv2(x))")
        lines.append("x = x.transpose(1, 2)")
        return Piece(init, lines + _shorter_mask(design, ["[:, ::2]"] * count))
    if kind in ("maxpool", "maxpool_twice", "avgpool"):
        count = 2 if kind == "maxpool_twice" else 1
        average = kind == "avgpool"
        pool = "F.avg_pool1d(x, 2)" if average else "F.max_pool1d(x, 2, ceil_mode=True)"
        init = [f"self.input_proj = nn.Linear({FEATURES}, {D_MODEL})"]
        lines = ["x = self.input_proj(features).transpose(1, 2)", *[f"x = {pool}"] * count]
        lines.append("x = x.transpose(1, 2)")
        cuts = ["[:, 1::2]" if average else "[:, ::2]"] * count
        return Piece(init, lines + _shorter_mask(design, cuts))
    if kind in ("patches_padded", "patches_cropped", "stacked_frames"):
        return _stacked(design, kind)
    init = [f"self.input_proj = nn.Linear({FEATURES}, {D_MODEL})"]
    return Piece(init, ["x = self.input_proj(features)"])


def _stacked(design: Design, kind: str) -> Piece:
    if kind == "stacked_frames":
        init = [f"self.input_proj = nn.Linear({2 * FEATURES}, {D_MODEL})"]
        lines = [
            "b, t, f = features.shape",
            "x = features[:, : t // 2 * 2].reshape(b, t // 2, 2 * f)",
            "x = self.input_proj(x)",
        ]
        return Piece(init, lines + _shorter_mask(design, ["[:, 1::2]"]))
    init = [f"self.patch_proj = nn.Linear({3 * FEATURES}, {D_MODEL})"]
    if kind == "patches_padded":
        lines = [
            "missing = -features.size(1) % 3",
            "x = F.pad(features, (0, 0, 0, missing))",
            "x = self.patch_proj(x.unflatten(1, (-1, 3)).flatten(2))",
        ]
        if has_padding(design):
            lines.append("src_padding = F.pad(src_padding, (0, missing), value=True)[:, ::3]")
        return Piece(init, lines)
    lines = [
        "n = features.size(1) // 3",
        "x = features[:, : n * 3].reshape(features.size(0), n, -1)",
        "x = self.patch_proj(x)",
    ]
    return Piece(init, lines + _shorter_mask(design, ["[:, 2::3]"]))


def _of_images(design: Design) -> Piece:
    """A picture (b, 1, h, w) to maps (b, c, h', w'), and these to a row for each place."""
    kind = design.choices["stride"]
    channels, shrunk = 4, {"none": 1, "conv": 2, "maxpool": 2, "avgpool": 2}.get(kind, 4)
    conv = "nn.Conv2d({}, {}, 3, stride={}, padding=1)"
    if kind.startswith("patches"):
        channels, piece = D_MODEL, _patches(kind)
    else:
        strides = {"conv": [2], "conv_twice": [2, 2]}.get(kind, [1])
        pooled = {"maxpool": ["nn.MaxPool2d(2)"], "avgpool": ["nn.AvgPool2d(2)"]}.get(kind, [])
        pooled = ["nn.MaxPool2d(2)"] * 2 if kind == "maxpool_twice" else pooled
        layers = []
        for i, stride in enumerate(strides):
            layers += [conv.format(channels if i else 1, channels, stride), "nn.ReLU()"]
        for i, pool in enumerate(pooled):
            layers += [pool, *([conv.format(channels, channels, 1)] if not i else [])]
        body = "".join(f"\n    {layer}," for layer in layers)
        piece = Piece([f"self.backbone = nn.Sequential({body}\n)"], ["maps = self.backbone(image)"])
    if design.has("picture_positions", "rows_and_columns"):
        piece.init += [
            f"self.row_embed = nn.Parameter(torch.rand(50, {channels // 2}))",
            f"self.col_embed = nn.Parameter(torch.rand(50, {channels // 2}))",
        ]
        piece.lines += [
            "h, w = maps.shape[-2:]",
            "cols = self.col_embed[:w].unsqueeze(0).repeat(h, 1, 1)",
            "rows = self.row_embed[:h].unsqueeze(1).repeat(1, w, 1)",
            "maps = maps + torch.cat([cols, rows], dim=-1).permute(2, 0, 1).unsqueeze(0)",
        ]
    if design.has("input", "image_width"):
        piece.init.append(f"self.input_proj = nn.Linear({channels * HEIGHT // shrunk}, {D_MODEL})")
        piece.lines.append("x = self.input_proj(maps.permute(0, 3, 1, 2).flatten(2))")
    else:
        piece.init.append(f"self.input_proj = nn.Linear({channels}, {D_MODEL})")
        piece.lines.append("x = self.input_proj(maps.flatten(2).transpose(1, 2))")
    return piece


def _patches(kind: str) -> Piece:
    if kind == "patches_unfold":
        return Piece(
            [f"self.patch_proj = nn.Linear({PATCH * PATCH}, {D_MODEL})"],
            [
                f"h, w = image.size(2) // {PATCH}, image.size(3) // {PATCH}",
                f"x = F.unfold(image, {PATCH}, stride={PATCH}).transpose(1, 2)",
                "maps = self.patch_proj(x).transpose(1, 2).unflatten(2, (h, w))",
            ],
        )
    init = [f"self.patches = nn.Conv2d(1, {D_MODEL}, {PATCH}, stride={PATCH})"]
    if kind == "patches_padded":
        lines = [
            "h, w = image.shape[-2:]",
            f"image = F.pad(image, (0, -w % {PATCH}, 0, -h % {PATCH}))",
        ]
    else:
        lines = [
            f"h, w = image.size(2) // {PATCH} * {PATCH}, image.size(3) // {PATCH} * {PATCH}",
            "image = image[:, :, :h, :w]",
        ]
    return Piece(init, [*lines, "maps = self.patches(image)"])


def _body(design: Design) -> Piece:
    kind = design.choices["encoder"]
    if kind == "torch_encoder" and design.has("attention", "torch_transformer"):
        return Piece()  # it is a part of the whole Transformer
    if kind in ("transformer", "torch_encoder"):
        return _layers(design, kind)
    if kind in ("gru_bidirectional", "lstm_packed"):
        return _recurrent(design, kind)
    if kind in ("conv_batch_norm", "conv_group_norm"):
        norm = "BatchNorm1d" if kind == "conv_batch_norm" else "GroupNorm"
        sizes = f"{D_MODEL}" if norm == "BatchNorm1d" else f"4, {D_MODEL}"
        init = [
            f"self.conv = nn.Conv1d({D_MODEL}, {D_MODEL}, 3, padding=1)",
            f"self.conv_norm = nn.{norm}({sizes})",
        ]
        return Piece(
            init, ["x = x + F.relu(self.conv_norm(self.conv(x.transpose(1, 2)))).transpose(1, 2)"]
        )
    if kind == "cell_pooling":
        init = [f"self.pool = nn.GRUCell({D_MODEL}, {D_MODEL})"]
        lines = ["pooled = x.mean(dim=1)"]
        if has_padding(design):
            lines = [
                "keep = (~src_padding).unsqueeze(-1).float()",
                "pooled = (x * keep).sum(1) / keep.sum(1)",
            ]
        return Piece(
            init, [*lines, "x = x + self.pool(pooled, torch.zeros_like(pooled)).unsqueeze(1)"]
        )
    if kind == "running_mean":
        lines = [
            "counts = torch.arange(1, x.size(1) + 1, device=x.device).unsqueeze(-1)",
            "x = x + self.mean_proj(x.cumsum(dim=1) / counts)",
        ]
        return Piece([f"self.mean_proj = nn.Linear({D_MODEL}, {D_MODEL})"], lines)
    return Piece()


def _layers(design: Design, kind: str) -> Piece:
    if kind == "torch_encoder":
        piece = norm_piece(design)
        options = torch_options(design)
        piece.init += [
            f"layer = nn.TransformerEncoderLayer({options})",
            "self.encoder_layers = nn.TransformerEncoder("
            f"layer, {design.layers}, {final_norm(design)})",
        ]
        given = ", src_key_padding_mask=src_padding" if has_padding(design) else ""
        turn = design.has("layout", "transposed_around")
        call = f"self.encoder_layers({'x.transpose(0, 1)' if turn else 'x'}{given})"
        piece.lines.append(f"x = {call}{'.transpose(0, 1)' if turn else ''}")
        return piece
    piece = encoder_layer_piece(design)
    sizes = f"{D_MODEL}, {design.heads}, {D_FF}"
    piece.init.append(
        "self.encoder_layers = nn.ModuleList("
        f"[EncoderLayer({sizes}) for _ in range({design.layers})])"
    )
    mask = ", src_mask" if has_padding(design) else ""
    if mask:
        piece.lines += source_mask(design, encoder=True)
    piece.lines += ["for layer in self.encoder_layers:", f"    x = layer(x{mask})"]
    if not design.has("last", "no_norm"):
        piece.init.append(f"self.encoder_norm = {final_norm(design)}")
        piece.lines.append("x = self.encoder_norm(x)")
    return piece


def _recurrent(design: Design, kind: str) -> Piece:
    half = D_MODEL // 2
    if kind == "gru_bidirectional":
        init = [f"self.rnn = nn.GRU({D_MODEL}, {half}, batch_first=True, bidirectional=True)"]
        return Piece(init, ["x, _ = self.rnn(x)"])
    init = [f"self.rnn = nn.LSTM({D_MODEL}, {half}, batch_first=True, bidirectional=True)"]
    lines = [
        "counts = (~src_padding).sum(dim=1).cpu()",
        "packed = nn.utils.rnn.pack_padded_sequence(",
        "    x, counts, batch_first=True, enforce_sorted=False",
        ")",
        "x, _ = nn.utils.rnn.pad_packed_sequence(",
        "    self.rnn(packed)[0], batch_first=True, total_length=x.size(1)",
        ")",
    ]
    return Piece(init, lines)


def source_mask(design: Design, encoder: bool) -> list[str]:
    """Lines that make ``src_mask``, in the form that attention takes, of ``src_padding``."""
    from tests.drawn_modules.attention_source import ADDED, VISIBLE, mask_form
    from tests.drawn_modules.layer_source import uses_multihead

    if uses_multihead(design, encoder):
        return ["src_mask = src_padding"]
    axes = "[:, None, :]" if design.has("attention", "additive") else "[:, None, None, :]"
    form = mask_form(design)
    if form == VISIBLE:
        return [f"src_mask = (~src_padding){axes}"]
    if form == ADDED:
        return [f"src_mask = src_padding{axes} * -1e9"]
    return [f"src_mask = src_padding{axes}"]


def least_sizes(design: Design) -> dict[str, int]:
    """The least size of each axis that varies, which strides do not bring down to nothing."""
    least = 1
    if design.has("input", "frames", *IMAGES):
        least = {"none": 1, "conv": 1, "conv_twice": 1}.get(design.choices["stride"], 4)
    return {"source_length": 1, "frames": least, "height": least, "width": least, "regions": 1}
