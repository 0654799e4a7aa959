"""Source of attention: projections, positions inside of it, masks, and what comes after.

Axes in the texts: b batch, t queries, s keys, h heads, size of a head.
"""

from tests.drawn_modules.productions import SDPA, SEPARATE_MASKS, Design
from tests.drawn_modules.text import Piece, block, class_text, method

VISIBLE, HIDDEN, ADDED = "visible", "hidden", "added"
MASK_FORMS = {
    "triu_bool": HIDDEN, "arange": HIDDEN, "tril_bool": VISIBLE, "tril_out": VISIBLE,
    "cached_buffer": VISIBLE, "float_inf": ADDED, "square_subsequent": ADDED,
    "large_negative": ADDED, "is_causal": VISIBLE, "none": HIDDEN,
}  # fmt: skip
_ROTARY = ("rotary_interleaved", "rotary_halves", "rotary_complex", "rotary_kept_table")
_SLOTS = 3

ROTARY_TEXT = {
    "rotary_interleaved": """
        def rotate(x):
            # (b, h, t, size): pairs of neighbours are turned
            t, size = x.size(2), x.size(3)
            inv_freq = 1.0 / 10000 ** (torch.arange(0, size, 2).float() / size)
            angles = torch.outer(torch.arange(t).float(), inv_freq)
            cos, sin = angles.cos(), angles.sin()
            even, odd = x[..., 0::2], x[..., 1::2]
            return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(3)
    """,
    "rotary_halves": """
        def rotate(x):
            # (b, h, t, size): the first half is paired with the second
            t, size = x.shape[-2], x.shape[-1]
            inv_freq = 1.0 / (10000 ** (torch.arange(0, size, 2, dtype=torch.float32) / size))
            freqs = torch.arange(t, dtype=torch.float32)[:, None] * inv_freq[None, :]
            emb = torch.cat((freqs, freqs), dim=-1)
            first, second = x.chunk(2, dim=-1)
            return x * emb.cos() + torch.cat((-second, first), dim=-1) * emb.sin()
    """,
    "rotary_complex": """
        def rotate(x):
            # (b, h, t, size) as complex numbers, times unit numbers of growing angle
            t, size = x.size(2), x.size(3)
            freqs = 1.0 / (10000.0 ** (torch.arange(0, size, 2).float() / size))
            angles = torch.outer(torch.arange(t).float(), freqs)
            unit = torch.polar(torch.ones_like(angles), angles)
            numbers = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
            return torch.view_as_real(numbers * unit).flatten(3).type_as(x)
    """,
}
_KEPT_TABLE = class_text(
    "Rotary",
    "size",
    [
        'self.register_buffer("inv_freq", 1.0 / 10000 ** (torch.arange(0, size, 2) / size))',
        "self.seen = 0",
    ],
    [
        block(
            """
            def forward(self, x):
                t = x.size(2)
                if t > self.seen:
                    self.seen = t
                    angles = torch.outer(torch.arange(t).float(), self.inv_freq)
                    self.cos = torch.cat([angles, angles], dim=-1).cos()
                    self.sin = torch.cat([angles, angles], dim=-1).sin()
                first, second = x.chunk(2, dim=-1)
                turned = torch.cat([-second, first], dim=-1)
                return x * self.cos[:t] + turned * self.sin[:t]
            """
        )
    ],
)
_BUCKETS = block(
    """
    def buckets(relative, both_ways, count=8, furthest=20):
        # distances in steps that grow with the logarithm
        number = torch.zeros_like(relative)
        if both_ways:
            count = count // 2
            number = number + (relative > 0).long() * count
            relative = relative.abs()
        else:
            relative = -torch.min(relative, torch.zeros_like(relative))
        exact = count // 2
        ratio = torch.log(relative.float() / exact + 1e-6) / math.log(furthest / exact)
        far = exact + (ratio * (count - exact)).long()
        far = torch.min(far, torch.full_like(far, count - 1))
        return number + torch.where(relative < exact, relative, far)
    """
)


def mask_form(design: Design) -> str:
    """How masks of a design say what is hidden."""
    return MASK_FORMS[design.choices["target_mask"]]


def separate_masks(design: Design) -> bool:
    """Whether masks of positions and of padding are given one by one, as torch's layers want."""
    return design.has("attention", *SEPARATE_MASKS)


def attention_piece(design: Design) -> Piece:
    """The classes of a design's attention; ``Attention`` is what layers call."""
    kind = design.choices["attention"]
    if kind in SEPARATE_MASKS:
        return Piece()
    if kind == "additive":
        return Piece(classes={"Attention": _additive(design)})
    if kind == "loop_over_heads":
        return Piece(classes={"Head": _head(design), "Attention": _LOOP})
    helpers, init, turned, biased = _positions(design)
    lines = ["b, t, d = x.shape"]
    own_init, projected = _PROJECTIONS.get(kind, _PROJECTIONS["by_hand"])
    init = [*own_init, *init, *_EXTRA_INIT.get(kind, [])]
    lines += [*projected, *turned]
    lines += _einsum(design) if kind == "einsum" else _weighted(design, kind, biased)
    if kind == "gated":
        lines.append("context = context * torch.sigmoid(self.gate(x))")
    lines.append("return self.out(context)")
    arguments = "d_model, heads, self_attention=False, causal=False"
    start = [
        "self.heads, self.size = heads, d_model // heads",
        "self.self_attention, self.causal = self_attention, causal",
        "self.out = nn.Linear(d_model, d_model)",
    ]
    forward = method("forward", ["x", "memory", "mask=None"], lines)
    text = class_text("Attention", arguments, [*start, *init], [forward])
    return Piece(classes={**helpers, "Attention": text})


_SPLIT = ".view(b, -1, self.heads, self.size).transpose(1, 2)"
_THREE = [f"self.{name}_proj = nn.Linear(d_model, d_model)" for name in "qkv"]
_PROJECTIONS: dict[str, tuple[list[str], list[str]]] = {
    "by_hand": (
        _THREE,
        [f"q = self.q_proj(x){_SPLIT}"]
        + [f"{name} = self.{name}_proj(memory){_SPLIT}" for name in "kv"],
    ),
    "einsum": (
        _THREE,
        ["q = self.q_proj(x).reshape(b, t, self.heads, self.size)"]
        + [
            f"{name} = self.{name}_proj(memory).reshape(b, -1, self.heads, self.size)"
            for name in "kv"
        ],
    ),
    "packed_qkv": (
        ["self.qkv = nn.Linear(d_model, 3 * d_model)"],
        [
            "if self.self_attention:",
            "    q, k, v = self.qkv(x).chunk(3, dim=-1)",
            "else:",
            "    weight, bias = self.qkv.weight, self.qkv.bias",
            "    q = F.linear(x, weight[:d], bias[:d])",
            "    k, v = F.linear(memory, weight[d:], bias[d:]).chunk(2, dim=-1)",
            f"q, k, v = (each{_SPLIT} for each in (q, k, v))",
        ],
    ),
    "grouped_kv": (
        [
            "self.groups = 2",
            "self.q_proj = nn.Linear(d_model, d_model)",
            "self.kv_proj = nn.Linear(d_model, 2 * self.groups * self.size)",
        ],
        [
            f"q = self.q_proj(x){_SPLIT}",
            "k, v = self.kv_proj(memory).view(b, -1, 2, self.groups, self.size).unbind(2)",
            "k, v = k.transpose(1, 2), v.transpose(1, 2)",
            "k = k.repeat_interleave(self.heads // self.groups, dim=1)",
            "v = v.repeat_interleave(self.heads // self.groups, dim=1)",
        ],
    ),
    "multi_query": (
        [
            "self.q_proj = nn.Linear(d_model, d_model)",
            "self.k_proj = nn.Linear(d_model, self.size)",
            "self.v_proj = nn.Linear(d_model, self.size)",
        ],
        [
            f"q = self.q_proj(x){_SPLIT}",
            "k = self.k_proj(memory).unsqueeze(1)",
            "v = self.v_proj(memory).unsqueeze(1)",
        ],
    ),
}
_EXTRA_INIT = {
    "talking_heads": [
        "self.mix_before = nn.Linear(heads, heads, bias=False)",
        "self.mix_after = nn.Linear(heads, heads, bias=False)",
    ],
    "gated": ["self.gate = nn.Linear(d_model, d_model)"],
    "cosine": ["self.log_scale = nn.Parameter(torch.ones(heads, 1, 1))"],
    "memory_slots": [
        f"self.slot_keys = nn.Parameter(torch.randn(1, {_SLOTS}, d_model))",
        f"self.slot_values = nn.Parameter(torch.randn(1, {_SLOTS}, d_model))",
    ],
}


def _positions(design: Design) -> tuple[dict[str, str], list[str], list[str], list[str]]:
    """What positions inside of attention need: helpers, init, lines for q and k, for scores."""
    kind = design.choices["positions"]
    between = "between = torch.arange(k.size(2))[None, :] - torch.arange(t)[:, None]"
    if kind == "rotary_kept_table":
        turned = ["if self.self_attention:", "    q, k = self.rotary(q), self.rotary(k)"]
        return {"Rotary": _KEPT_TABLE}, ["self.rotary = Rotary(self.size)"], turned, []
    if kind in _ROTARY:
        turned = ["if self.self_attention:", "    q, k = rotate(q), rotate(k)"]
        return {"rotate": block(ROTARY_TEXT[kind])}, [], turned, []
    if kind == "relative_buckets":
        biased = [
            "if self.self_attention:",
            f"    {between}",
            "    bias = self.bias(buckets(between, not self.causal))  # (t, s, h)",
            "    scores = scores + bias.permute(2, 0, 1).unsqueeze(0)",
        ]
        return {"buckets": _BUCKETS}, ["self.bias = nn.Embedding(8, heads)"], [], biased
    if kind == "alibi":
        init = [
            "slopes = 2.0 ** (-8.0 / heads * torch.arange(1, heads + 1))",
            'self.register_buffer("slopes", slopes.view(heads, 1, 1))',
        ]
        biased = [
            "if self.self_attention:",
            f"    {between}",
            "    scores = scores - self.slopes * between.abs()",
        ]
        return {}, init, [], biased
    if kind == "relative_clamped":
        biased = [
            "if self.self_attention:",
            f"    {between}",
            "    near = self.near(between.clamp(-4, 4) + 4)  # (t, s, size)",
            '    scores = scores + torch.einsum("bhtd,tsd->bhts", q, near) / self.size**0.5',
        ]
        return {}, ["self.near = nn.Embedding(9, self.size)"], [], biased
    return {}, [], [], []


def masked(design: Design, scores: str = "scores") -> list[str]:
    """Lines that hide scores by a mask, where there is one."""
    form = mask_form(design)
    if form == ADDED:
        hidden = f"{scores} = {scores} + mask"
    elif form == VISIBLE:
        hidden = f"{scores} = {scores}.masked_fill(mask == 0, {design.fill})"
    else:
        hidden = f"{scores} = {scores}.masked_fill(mask, {design.fill})"
    return ["if mask is not None:", f"    {hidden}"]


def _weighted(design: Design, kind: str, biased: list[str]) -> list[str]:
    joined = "context = context.transpose(1, 2).contiguous().view(b, t, d)"
    if kind in SDPA:
        causal = "self.causal" if kind == "sdpa_causal" else "False"
        negated = ["if mask is not None:", "    mask = ~mask"]
        return [
            *(negated if mask_form(design) == HIDDEN else []),
            "context = F.scaled_dot_product_attention(",
            f"    q, k, v, attn_mask=mask, is_causal={causal}",
            ")",
            "context = context.transpose(1, 2).reshape(b, t, d)",
        ]
    lines = []
    if kind == "memory_slots":
        lines += [
            f"k = torch.cat([k, self.slot_keys.expand(b, -1, -1){_SPLIT}], dim=2)",
            f"v = torch.cat([v, self.slot_values.expand(b, -1, -1){_SPLIT}], dim=2)",
            "if mask is not None:",
            f"    mask = F.pad(mask, (0, {_SLOTS}), value={mask_form(design) == VISIBLE})",
        ]
    if kind == "cosine":
        lines += [
            "scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)",
            "scores = scores * self.log_scale.exp()",
        ]
    else:
        lines.append("scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.size)")
    lines += biased
    if kind == "talking_heads":
        mix = "(scores.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)"
        lines.append(f"scores = self.mix_before{mix}")
    lines += [*masked(design), "weights = F.softmax(scores, dim=-1)"]
    if kind == "talking_heads":
        lines.append("weights = self.mix_after(weights.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)")
    return [*lines, "self.weights = weights", "context = torch.matmul(weights, v)", joined]


def _einsum(design: Design) -> list[str]:
    return [
        'scores = torch.einsum("bthd,bshd->bhts", q, k)',
        *masked(design),
        "weights = torch.softmax(scores / self.size**0.5, dim=3)",
        'context = torch.einsum("bhts,bshd->bthd", weights, v).reshape(b, t, d)',
    ]


def _head(design: Design) -> str:
    lines = [
        "q, k, v = self.query(x), self.key(memory), self.value(memory)",
        "scores = q @ k.transpose(1, 2) * q.size(-1) ** -0.5",
        *masked(design),
        "return scores.softmax(dim=-1) @ v",
    ]
    init = [
        f"self.{name} = nn.Linear(d_model, size, bias=False)" for name in ("query", "key", "value")
    ]
    forward = method("forward", ["x", "memory", "mask=None"], lines)
    return class_text("Head", "d_model, size", init, [forward])


_LOOP = class_text(
    "Attention",
    "d_model, heads, self_attention=False, causal=False",
    [
        "size = d_model // heads",
        "self.heads = nn.ModuleList([Head(d_model, size) for _ in range(heads)])",
        "self.out = nn.Linear(d_model, d_model)",
    ],
    [
        method(
            "forward",
            ["x", "memory", "mask=None"],
            [
                "if mask is not None and mask.dim() == 4:",
                "    mask = mask.squeeze(1)",
                "return self.out(torch.cat([head(x, memory, mask) for head in self.heads], -1))",
            ],
        )
    ],
)


def _additive(design: Design) -> str:
    lines = [
        "# (b, t, 1, d) + (b, 1, s, d) -> (b, t, s)",
        "summed = self.query(x).unsqueeze(2) + self.key(memory).unsqueeze(1)",
        "scores = self.score(torch.tanh(summed)).squeeze(-1)",
        *masked(design),
        "return torch.bmm(F.softmax(scores, dim=-1), memory)",
    ]
    init = [
        "self.query = nn.Linear(d_model, d_model)",
        "self.key = nn.Linear(d_model, d_model, bias=False)",
        "self.score = nn.Linear(d_model, 1)",
    ]
    forward = method("forward", ["x", "memory", "mask=None"], lines)
    return class_text("Attention", "d_model, heads", init, [forward])
