"""Which faults the comparison with eager PyTorch catches, and why not the others.

Each fault is planted in the project's modules, which is what is exported, and the result is judged
by the tolerances of the comparison against the reference: the user's own code, or the original that
is rebuilt from the checkpoint. The exported graphs are not made for each fault: they differ from
the modules by rounding alone, which the comparison of the right model shows.

    python -m benchmarks.planted_faults examples/de-en
    python -m benchmarks.planted_faults model.pt --set num_heads=8 --reference my_code:reference
"""

import argparse
import dataclasses
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tfexport.export.named_code import load_named
from tfexport.export.parity.checkpoint import EagerCheckpoint, grid
from tfexport.export.parity.compare import compare_logits
from tfexport.export.parity.eager_run import EagerRun
from tfexport.export.report import Comparison, ParityReport
from tfexport.model_src.checkpoint.checkpoint import Checkpoint
from tfexport.model_src.checkpoint.read_options import ReadOptions
from tfexport.model_src.config import BUNDLE_IDS
from tfexport.model_src.transformer import Transformer

Weights = dict[str, Tensor]
ENCODER, DECODER = "encoder.layers.0", "decoder.layers.0"


class AbsentError(Exception):
    """The model has not the part in which a fault would be."""


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        name: what is wrong.
        plant: gives the config values that are wrong, and changes the weights that are.
        ignores_padding: the mask of the source does not act.
    """

    name: str
    plant: Callable[[Checkpoint, Weights], dict[str, Any]]
    ignores_padding: bool = False


@dataclass(frozen=True)
class Verdict:
    """How a fault was judged; None of all figures if the model has not its part.

    Attributes:
        fault: the fault.
        worst: the comparison that is nearest to failing, or failed most.
        tokens: best tokens that differ, of all.
        warned: the comparison passes, and says that rounding does not explain the difference.
    """

    fault: Fault
    worst: Comparison | None
    tokens: int = 0
    warned: bool = False

    @property
    def caught(self) -> bool:
        """Whether the comparison fails."""
        return self.worst is not None and not self.worst.passed


def config(**values: Any) -> Callable[[Checkpoint, Weights], dict[str, Any]]:
    """Other config values; a callable is given the config, and None says that there is none."""

    def plant(checkpoint: Checkpoint, _weights: Weights) -> dict[str, Any]:
        found = {k: v(checkpoint.config) if callable(v) else v for k, v in values.items()}
        if all(value in (None, getattr(checkpoint.config, key)) for key, value in found.items()):
            raise AbsentError
        return found

    return plant


def weight(pattern: str, change: Callable[[Tensor], Tensor]) -> Any:
    """Another value of one weight: the first one whose name matches a pattern."""

    def plant(_checkpoint: Checkpoint, weights: Weights) -> dict[str, Any]:
        name = next((each for each in weights if re.fullmatch(pattern, each)), None)
        if name is None:
            raise AbsentError
        changed = change(weights[name].clone())
        if changed.shape != weights[name].shape or torch.equal(changed, weights[name]):
            raise AbsentError
        weights[name] = changed
        return {}

    return plant


def exchange(first: str, second: str, both: bool = True) -> Any:
    """Weights under one prefix in place of those under another, and the other way round."""

    def plant(_checkpoint: Checkpoint, weights: Weights) -> dict[str, Any]:
        pairs = [(n, second + n.removeprefix(first)) for n in weights if n.startswith(first)]
        pairs = [(a, b) for a, b in pairs if b in weights and weights[a].shape == weights[b].shape]
        if not pairs:
            raise AbsentError
        for a, b in pairs:
            weights[a], weights[b] = weights[b], (weights[a] if both else weights[b])
        return {}

    return plant


def _rows_exchanged(row: int) -> Callable[[Tensor], Tensor]:
    def change(table: Tensor) -> Tensor:
        if len(table) <= row + 1:
            raise AbsentError
        table[[row, row + 1]] = table[[row + 1, row]]
        return table

    return change


def _one_off(values: Tensor) -> Tensor:
    values.view(-1)[values.numel() // 2] += values.std()
    return values


def _times(factor: float) -> Callable[[Tensor], Tensor]:
    return lambda values: values * factor


def _token_without_embedding(checkpoint: Checkpoint, weights: Weights) -> dict[str, Any]:
    """The token in the middle of the source's table, and of others that are the same one."""
    of, names = checkpoint.config, ["source_embedding.tokens.weight"]
    names += ["target_embedding.tokens.weight"] if of.tie_embeddings else []
    names += ["output_proj.weight"] if of.tie_embeddings and of.tie_output else []
    for name in names:
        if name not in weights:
            raise AbsentError
        weights[name] = weights[name].clone()
        weights[name][len(weights[name]) // 2] = 0
    return {}


def _heads(factor: float) -> Callable[[Checkpoint, Weights], dict[str, Any]]:
    """Another number of heads; of distances' biases each is taken twice, or every other one."""

    def plant(checkpoint: Checkpoint, weights: Weights) -> dict[str, Any]:
        of = checkpoint.config
        found, width = int(of.num_heads * factor), of.num_heads * of.head_dim
        if not found or width % found or of.decoder_num_heads:
            raise AbsentError
        for name, table in weights.items():
            if name.endswith("relative.table"):
                many = table.repeat_interleave(2, 1) if factor > 1 else table[:, ::2]
                weights[name] = many.contiguous()
        return {"num_heads": found, "head_dim": width // found}

    return plant


def _transposed(values: Tensor) -> Tensor:
    """A matrix whose largest square block is transposed."""
    size = min(values.shape)
    values[:size, :size] = values[:size, :size].T.clone()
    return values


def _half(values: Tensor) -> Tensor:
    return values.bfloat16().float()


FAULTS = (
    Fault("another activation (gelu for relu, relu for others)", config(
        activation=lambda of: "gelu" if of.activation == "relu" else "relu")),
    Fault("silu as the activation", config(activation="silu")),
    Fault("gelu by tanh, or exact for that", config(activation=lambda of: {
        "gelu": "gelu_tanh", "gelu_tanh": "gelu"}.get(of.activation))),
    Fault("epsilon 1e-6 for 1e-5, or 1e-5 for 1e-6", config(
        norm_eps=lambda of: 1e-5 if of.norm_eps == 1e-6 else 1e-6)),
    Fault("epsilon 1e-3", config(norm_eps=1e-3)),
    Fault("scale of the embeddings", config(scale_embeddings=lambda of: not of.scale_embeddings)),
    Fault("places of the norms", config(
        norm_placement=lambda of: "pre" if of.norm_placement == "post" else "post")),
    Fault("places of the decoder's norms", config(
        decoder_norm_placement=lambda of: {"post": "pre"}.get(of.decoder.norm_placement, "post"))),
    Fault("another kind of norm (annotated for layer, layer for others)", config(
        norm=lambda of: "annotated" if of.norm == "layer" else "layer")),
    Fault("twice as many heads", _heads(2)),
    Fault("half as many heads", _heads(0.5)),
    Fault("scores not scaled, or scaled", config(scale_scores=lambda of: not of.scale_scores)),
    Fault("mask fill -10", config(mask_fill=-10.0)),
    Fault("mask fill -1e4", config(mask_fill=-1e4)),
    Fault("padding of the source is not masked", lambda _checkpoint, _weights: {}, True),
    Fault("residual stream times 1.001", config(residual_scale=1.001)),
    Fault("two source positions exchanged", weight(
        "source_embedding.positions.table", _rows_exchanged(2))),
    Fault("two target positions exchanged", weight(
        "target_embedding.positions.table", _rows_exchanged(2))),
    Fault("target positions begin with 1", weight(
        "target_embedding.positions.table", lambda table: table.roll(-1, 0))),
    Fault("two source distances exchanged", weight(
        r"encoder\.(layers\.0\.self_attn\.)?relative\.table", _rows_exchanged(2))),
    Fault("two target distances exchanged", weight(
        r"decoder\.(layers\.0\.self_attn\.)?relative\.table", _rows_exchanged(2))),
    Fault("distances of half the range", config(relative_max_distance=lambda of: (
        of.relative_max_distance // 2 if "buckets" in of.relative_positions else None))),
    Fault("no bias of queries", weight(f"{ENCODER}.self_attn.q_proj.bias", _times(0))),
    Fault("no bias of values", weight(f"{DECODER}.cross_attn.v_proj.bias", _times(0))),
    Fault("no bias of keys (acts on nothing)", weight(
        f"{DECODER}.cross_attn.k_proj.bias", _times(0))),
    Fault("no bias of the feed-forward", weight(f"{DECODER}.feed_forward.up_proj.bias", _times(0))),
    Fault("no bias of a norm", weight(f"{ENCODER}.self_attn_residual.norm.bias", _times(0))),
    Fault("no bias of the output", weight("output_proj.bias", _times(0))),
    Fault("queries' square matrix transposed", weight(
        f"{ENCODER}.self_attn.q_proj.weight", _transposed)),
    Fault("output's square matrix transposed", weight(
        f"{DECODER}.cross_attn.out_proj.weight", _transposed)),
    Fault("an encoder layer's weights twice", exchange("encoder.layers.1", ENCODER, both=False)),
    Fault("a decoder layer's weights twice", exchange("decoder.layers.1", DECODER, both=False)),
    Fault("queries and keys exchanged", exchange(
        f"{ENCODER}.self_attn.q_proj", f"{ENCODER}.self_attn.k_proj")),
    Fault("keys and values exchanged", exchange(
        f"{DECODER}.cross_attn.k_proj", f"{DECODER}.cross_attn.v_proj")),
    Fault("gates and what they gate exchanged", exchange(
        f"{DECODER}.feed_forward.gate_proj", f"{DECODER}.feed_forward.up_proj")),
    Fault("the decoder's last norm scaled by the width", weight(
        "decoder.norm.weight", lambda values: values * values.numel() ** -0.5)),
    Fault("two norms exchanged", exchange(
        f"{ENCODER}.self_attn_residual.norm", f"{ENCODER}.feed_forward_residual.norm")),
    Fault("one source token without its embedding", _token_without_embedding),
    Fault("one matrix times 1.01", weight(
        f"{ENCODER}.feed_forward.down_proj.weight", _times(1.01))),
    Fault("one matrix times 1.0001", weight(
        f"{ENCODER}.feed_forward.down_proj.weight", _times(1.0001))),
    Fault("one matrix in bfloat16", weight(f"{DECODER}.self_attn.v_proj.weight", _half)),
    Fault("one number of a matrix off by a deviation", weight(
        f"{DECODER}.feed_forward.up_proj.weight", _one_off)),
)  # fmt: skip


@torch.no_grad()
def judge(
    checkpoint: Checkpoint, faults: tuple[Fault, ...] = FAULTS
) -> tuple[list[Comparison], list[Verdict]]:
    """The comparisons of the right model, and the verdict on each fault.

    Args:
        checkpoint: with the user's own code as its ``reference``, if there is any.
        faults: to plant, one at a time.
    """
    eager = EagerCheckpoint(checkpoint)
    runs = [eager.decode(EagerRun(eager, (), shape)) for shape in grid(checkpoint.config)]
    right = [found for found, _ in _compare(eager, runs, eager.model, False)]
    return right, [_judge(checkpoint, eager, runs, fault) for fault in faults]


def _judge(
    checkpoint: Checkpoint, eager: EagerCheckpoint, runs: list[EagerRun], fault: Fault
) -> Verdict:
    weights = dict(checkpoint.weights)
    try:
        values = fault.plant(checkpoint, weights)
    except AbsentError:
        return Verdict(fault, None)
    wrong = dataclasses.replace(
        checkpoint, config=dataclasses.replace(checkpoint.config, **values), weights=weights
    )
    found = [*_compare(eager, runs, wrong.build(), fault.ignores_padding)]
    worst = max((each for each, _ in found), key=lambda it: (not it.passed, it.used))
    report = ParityReport(eager.reference.title, [each for each, _ in found])
    warned = report.passed and report.doubt is not None
    return Verdict(fault, worst, sum(tokens for _, tokens in found), warned)


def _compare(
    eager: EagerCheckpoint, runs: list[EagerRun], model: Transformer, ignores_padding: bool
) -> Iterator[tuple[Comparison, int]]:
    for run in runs:
        (ids, mask), prefix = eager.padded(run.rows), torch.from_numpy(run.prefix)
        mask = torch.ones_like(mask) if ignores_padding else mask
        ours = model(ids, mask, prefix, torch.ones(prefix.shape)).numpy()
        noise = run.noise.logits
        found = compare_logits(run, "eager modules", ours, run.logits, noise)
        yield found, int((ours.argmax(-1) != run.logits.argmax(-1)).sum())


def table(reference: str, right: list[Comparison], verdicts: list[Verdict]) -> str:
    """Both as Markdown."""
    noise, allowed = [each.noise for each in right], [each.allowed for each in right]
    there = [each for each in verdicts if each.worst is not None]
    caught, warned = (sum(getattr(each, it) for each in there) for it in ("caught", "warned"))
    differs, part = max(it.difference for it in right), max(it.used for it in right)
    lines = [
        f"against {reference}: float32 noise {min(noise):.1e} to {max(noise):.1e}, allowed "
        f"{min(allowed):.1e} to {max(allowed):.1e}; the right model differs by {differs:.1e} at "
        f"most, {part:.0%} of what is allowed. {caught} of {len(there)} faults are caught, and of "
        f"{warned} a warning is given.",
        "",
        "| fault | caught | difference | times what is allowed | best tokens that differ |",
        "|---|---|---|---|---|",
    ]
    for each in there:
        assert each.worst is not None
        said = "yes" if each.caught else "warned" if each.warned else "no"
        used = f"{each.worst.used:,.3g}"
        lines.append(
            f"| {each.fault.name} | {said} | {each.worst.difference:.1e} | {used} | {each.tokens} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Plant faults in the model of a checkpoint, and print which are caught."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--config", metavar="FILE")
    parser.add_argument("--format", metavar="NAME")
    parser.add_argument("--reference", metavar="PACKAGE.FILE:FUNCTION")
    given = parser.parse_args()
    code = load_named(given.reference, "reference") if given.reference else None
    read = ReadOptions(given.config, given.set, given.format, code)
    checkpoint = read.read(given.checkpoint, BUNDLE_IDS)
    print(table(EagerCheckpoint(checkpoint).reference.title, *judge(checkpoint)))


if __name__ == "__main__":
    main()
