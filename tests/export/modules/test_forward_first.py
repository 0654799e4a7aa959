"""What is exported of a module: its forward, or its methods where these are asked for."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from tests.export.incremental.public_modules import FRAMES, SIZE, Captioner, HeadInForward
from tfexport.export import Input, export, verify
from tfexport.export.artifacts.results import ExportResult
from tfexport.runtime import Translator

# torch warns of parts of its own, of torch.jit and of its quantisation, which people use.
pytestmark = [
    pytest.mark.usefixtures("only_steps"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning"),
]
FACTS: dict[str, Any] = {
    "inputs": FRAMES, "pad_id": 0, "bos_id": 1, "eos_id": 2, "max_length": 8, "pack": False,
}  # fmt: skip


def seeded(build: type[nn.Module], *args: Any) -> nn.Module:
    torch.manual_seed(3)
    return build(*args).eval()


def exported(model: nn.Module, folder: Path, **options: Any) -> ExportResult:
    return export(model, folder / "x.bundle", **{**FACTS, "recognise": False, **options})


class HeadInDecode(HeadInForward):
    """Methods of docs/modules.md, which compute what the forward computes."""

    def decode(self, tgt: Tensor, memory: Tensor) -> Tensor:
        logits: Tensor = self.out(self.states(memory, tgt))
        return logits

    def forward(self, source: Tensor, tgt: Tensor) -> Tensor:
        return self.decode(tgt, self.encode(source))


class OtherScale(HeadInDecode):
    """Methods of another training than the forward's."""

    def decode(self, tgt: Tensor, memory: Tensor) -> Tensor:
        return 1.5 * super().decode(tgt, memory)

    def forward(self, source: Tensor, tgt: Tensor) -> Tensor:
        return self.decode(tgt, self.encode(source)) / 1.5


class Normalised(HeadInDecode):
    """The forward gives log-probabilities, the methods logits."""

    def forward(self, source: Tensor, tgt: Tensor) -> Tensor:
        return super().forward(source, tgt).log_softmax(-1)


class OfLoss(HeadInDecode):
    """A forward of a training alone."""

    def forward(self, batch: dict[str, Tensor]) -> Tensor:  # type: ignore[override]
        raise AssertionError("it is not called")


@pytest.mark.parametrize("kind", ["bundle", "int8", "generate", "torchscript"])
def test_methods_are_refused_if_the_forward_has_other_logits(kind: str, tmp_path: Path) -> None:
    output = tmp_path / {"generate": "x.onnx", "torchscript": "x.ts"}.get(kind, "x")
    chosen: dict[str, dict[str, Any]] = {
        "generate": {"graph": "generate"}, "int8": {"quantize": "int8"},
    }  # fmt: skip
    options = chosen.get(kind, {})
    with pytest.raises(RuntimeError) as caught:
        export(seeded(HeadInForward), output, steps="methods", verify=False, **FACTS, **options)
    message = str(caught.value)
    assert f"returns logits of {SIZE} tokens, and forward of 20" in message
    assert "public_modules.py, line" in message
    assert "omit steps='methods'" in message
    assert not output.exists()


@pytest.mark.parametrize(("build", "reason"), [
    (OtherScale, "other logits than forward"), (Normalised, "normalised otherwise"),
])  # fmt: skip
def test_methods_are_refused_if_the_forward_gives_other_values(
    build: type[nn.Module], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(RuntimeError, match=reason):
        exported(seeded(build), tmp_path, steps="methods", verify=False)
    assert not (tmp_path / "x.bundle").exists()


@pytest.mark.usefixtures("few_shapes")
def test_methods_that_are_asked_for_are_compared_with_the_forward(tmp_path: Path) -> None:
    model = seeded(HeadInDecode)
    made = exported(model, tmp_path, steps="methods", verify="quick")
    assert made.notes == ()
    assert "found" not in (made.manifest.module or {})
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    report = verify(made.path, model, inputs=FRAMES, level="quick")
    assert report.passed
    assert calls


def test_a_forward_of_another_signature_is_said_not_to_have_been_compared(tmp_path: Path) -> None:
    made = exported(seeded(OfLoss), tmp_path, verify=False)
    (note,) = made.notes
    assert "not compared with its forward: OfLoss.forward (test_forward_first.py, line" in note
    assert "does not take 2 arguments" in note


@pytest.mark.messages
def test_steps_by_a_forward_that_is_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"does not take 2 arguments.*say how it is called"):
        exported(seeded(OfLoss), tmp_path, steps="forward")
    with pytest.raises(ValueError, match="steps: 'encoder' is neither 'forward' nor 'methods'"):
        exported(seeded(OfLoss), tmp_path, steps="encoder")


@pytest.mark.parametrize("wrapper", [nn.DataParallel, AveragedModel])
def test_what_is_wrapped_is_the_module_inside(wrapper: Any, tmp_path: Path) -> None:
    compiled = torch.compile(wrapper(seeded(Captioner)))
    made = exported(compiled, tmp_path, verify=False)  # type: ignore[arg-type]
    assert made.manifest.module is not None
    assert made.manifest.module["found"]["state"]


class WithCompiledPart(Captioner):
    """A part is compiled, as training scripts do to what takes longest."""

    def __init__(self) -> None:
        super().__init__()
        self.out = torch.compile(self.out)  # type: ignore[assignment]
        self.layer.compile()


def test_a_part_that_is_compiled_is_exported(tmp_path: Path) -> None:
    assert exported(seeded(WithCompiledPart), tmp_path, verify=False).path.exists()


class Scripted(Captioner):
    """A part is TorchScript."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.jit.script(nn.LayerNorm(SIZE))

    def states(self, *inputs: Any) -> Tensor:
        states: Tensor = self.norm(super().states(*inputs))
        return states


def _int8() -> nn.Module:
    quantized: nn.Module = torch.ao.quantization.quantize_dynamic(seeded(Captioner), {nn.Linear})
    return quantized


@pytest.mark.messages
@pytest.mark.parametrize(("model", "part", "remedy"), [
    (lambda: seeded(Scripted), "norm", "PYTORCH_JIT=0"),
    (_int8, "see", "quantize='int8'"),
], ids=["TorchScript", "int8"])  # fmt: skip
def test_parts_without_code_are_refused_with_a_way_out(
    model: Any, part: str, remedy: str, tmp_path: Path
) -> None:
    with pytest.raises(RuntimeError, match=f"its part {part} ") as caught:
        exported(model(), tmp_path)
    assert "_forward_first.py, line" in str(caught.value) or "public_modules.py, line" in str(
        caught.value
    )
    assert remedy in str(caught.value)


def test_the_way_out_of_torchscript_leads_out(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from tests.export.modules.test_forward_first import Scripted, exported, seeded\n"
        "exported(seeded(Scripted), Path(sys.argv[1]), verify=False)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env={**os.environ, "PYTORCH_JIT": "0"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "x.bundle" / "manifest.json").exists()


class OfNames(Captioner):
    """The logits are in a dict, under another name."""

    def forward(self, source: Tensor, tgt: Tensor) -> Any:
        return {"scores": super().forward(source, tgt), "loss": None}


@pytest.mark.messages
def test_a_result_without_logits_is_refused_with_a_call_that_gives_them(tmp_path: Path) -> None:
    model = seeded(OfNames)
    with pytest.raises(RuntimeError, match="a dict of 'scores', 'loss'") as caught:
        exported(model, tmp_path)
    remedy = str(caught.value).partition("forward=")[2].partition(". docs")[0]
    assert remedy == "lambda model, frames, target: model(frames, target)['scores']"
    assert exported(model, tmp_path, forward=eval(remedy), verify=False).path.exists()


class StartWithoutLogit(Captioner):
    """The start token has a row in the table of embeddings, and no logit."""

    def forward(self, source: Tensor, tgt: Tensor) -> Tensor:
        return super().forward(source, tgt)[..., :-1]


@pytest.mark.messages
def test_a_start_token_without_a_logit_is_refused_with_a_call_that_gives_one(
    tmp_path: Path,
) -> None:
    model, options = seeded(StartWithoutLogit), {"bos_id": 19, "verify": False}
    with pytest.raises(ValueError, match="bos_id: 19 is not a token id") as caught:
        exported(model, tmp_path, **options)
    remedy = str(caught.value).partition("forward=")[2].strip().splitlines()[0]
    call = eval(remedy, {"torch": torch, "float": float})
    assert exported(model, tmp_path, forward=call, **options).path.exists()


class Lengths(Captioner):
    """Lengths as shares of the longest; a row of which all is hidden is NaN."""

    def forward(self, source: Tensor, shares: Tensor, tgt: Tensor) -> Tensor:  # type: ignore[override]
        y, x = self.words(tgt), self.see(source)
        kept = torch.arange(x.size(1))[None] < (shares * x.size(1))[:, None]
        scores = (y @ x.transpose(1, 2)).masked_fill(~kept[:, None], -torch.inf)
        logits: Tensor = self.out(y.cumsum(1) / 9 + scores.softmax(-1) @ x)
        return logits


def test_lengths_as_shares_are_drawn_as_shares(tmp_path: Path) -> None:
    inputs = (*FRAMES, Input("shares", "float32", ("batch",)))
    made = exported(seeded(Lengths), tmp_path, inputs=inputs, verify=False)
    assert made.path.exists()


class ShiftsLabels(HeadInDecode):
    """The decoder's ids are made of labels in ``forward``, as a training of T5 does."""

    def forward(self, source: Tensor, tgt: Tensor) -> Tensor:
        shifted = torch.cat([torch.ones_like(tgt[:, :1]), tgt[:, :-1]], 1)
        return super().forward(source, shifted)


class GrowsOtherwise(Captioner):
    """A table is made anew for longer rows, with other values for all."""

    base = 10.0

    def forward(self, source: Tensor, tgt: Tensor) -> Tensor:
        if source.size(1) > self.base:
            self.base = float(source.size(1))
        return super().forward(source * self.base, tgt)


class ActsOnShortOnes(Captioner):
    """Another branch for few frames, from which nothing else differs."""

    def forward(self, source: Tensor, tgt: Tensor) -> Tensor:
        return super().forward(source * 3 if source.size(1) < 4 else source, tgt)


class GivesLoss(HeadInDecode):
    """A forward that gives a loss, beside methods."""

    def forward(self, source: Tensor, tgt: Tensor) -> Tensor:
        return super().forward(source, tgt).logsumexp(-1).mean()


@pytest.mark.messages
@pytest.mark.parametrize(("build", "reason", "remedy"), [
    (ShiftsLabels, "do not depend on the last target id", "forward=lambda model"),
    (GrowsOtherwise, "after a call with longer ones", "computed in every call"),
    (GivesLoss, "gives logits of shape", "steps='methods'"),
    (ActsOnShortOnes, "another branch if num_frames is less than 4", "a mask"),
])  # fmt: skip
def test_forwards_that_say_something_else_are_refused(
    build: type[nn.Module], reason: str, remedy: str, tmp_path: Path
) -> None:
    with pytest.raises(RuntimeError, match=reason) as caught:
        exported(seeded(build), tmp_path, verify=False)
    assert f"{build.__name__}.forward (test_forward_first.py, line" in str(caught.value)
    assert remedy in str(caught.value)
    assert not (tmp_path / "x.bundle").exists()


def test_a_forward_that_gives_no_logits_is_no_judge_of_methods(tmp_path: Path) -> None:
    made = exported(seeded(GivesLoss), tmp_path, steps="methods", verify=False)
    assert "not compared with its forward: GivesLoss.forward" in made.notes[0]
    assert "steps=" not in made.notes[0]  # which was done


class Negated(nn.DataParallel[nn.Module]):
    """A user's own class around a module, which computes something."""

    def forward(self, source: Tensor, tgt: Tensor) -> Any:
        return -self.module(source, tgt)


def test_a_users_own_wrapper_is_not_taken_off(tmp_path: Path) -> None:
    model = Negated(seeded(Captioner))
    made = exported(model, tmp_path, verify=False)
    (result,) = Translator(made.path, engine="onnxruntime").generate_from([
        {"frames": np.ones((7, 6), np.float32)}
    ])  # fmt: skip
    with torch.no_grad():
        logits = model(torch.ones(1, 7, 6), torch.tensor([[1]]))
    assert result.hypotheses[0].tokens[0] == int(logits[0, -1].argmax())


class BoundedFrames(Captioner):
    """Another branch from 2,000 frames on."""

    def memory(self, source: Tensor) -> Tensor:
        rows = super().memory(source)
        return rows if source.size(1) <= 2000 else rows * 2


def test_a_large_bound_is_said_and_kept(tmp_path: Path) -> None:
    model = seeded(BoundedFrames)
    made = exported(model, tmp_path, verify=False)
    assert made.notes[0].startswith("num_frames is at most 2000")
    translator = Translator(made.path, engine="onnxruntime")
    with pytest.raises(ValueError, match="num_frames is 2001, of at most 2000"):
        translator.generate_from([{"frames": np.ones((2001, 6), np.float32)}])
    with pytest.raises(RuntimeError, match=r"if num_frames exceeds 2000.*write a bundle"):
        export(model, tmp_path / "x.onnx", graph="generate", **FACTS)


class ClampedLength(Captioner):
    """A number that is that of an axis at small sizes alone."""

    def memory(self, source: Tensor) -> Tensor:
        count = torch.full((1,), source.size(1)).clamp(max=120).max().item()
        return super().memory(source) + torch.arange(count).float().mean()


def test_a_number_that_is_a_size_only_at_first_is_not_taken_for_it(tmp_path: Path) -> None:
    model = seeded(ClampedLength)
    made = exported(model, tmp_path, verify=False)
    frames = np.random.default_rng(0).normal(size=(300, 6)).astype(np.float32)
    results = Translator(made.path, engine="onnxruntime").generate_from([{"frames": frames}])
    tokens = [1]
    with torch.no_grad():
        for _ in results[0].hypotheses[0].tokens:
            logits = model(torch.from_numpy(frames)[None], torch.tensor([tokens]))
            tokens.append(int(logits[0, -1].argmax()))
    assert list(results[0].hypotheses[0].tokens) == tokens[1:]
