"""Lines that a user wrote before, and writes now: counted, and both compute the same."""

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.export.incremental.own_case import Case, draw_inputs, draw_target, drawn, logits
from tests.export.incremental.rewrites import AnnotatedSteps, TutorialSteps, WhisperSteps
from tests.export.incremental.tutorial_modules import TUTORIAL_CASES, annotated, with_masks
from tests.support.documents import read_blocks
from tests.support.paths import REPOSITORY
from tfexport.export import Input

pytestmark = pytest.mark.filterwarnings("ignore:.*nested.tensor:UserWarning")
PAGE = REPOSITORY / "docs" / "training-script.md"


def whisper() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.WhisperConfig(
        vocab_size=23, num_mel_bins=4, d_model=12, encoder_layers=1, decoder_layers=2,
        encoder_attention_heads=2, decoder_attention_heads=3, encoder_ffn_dim=16,
        decoder_ffn_dim=20, max_source_positions=6, max_target_positions=30, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    return drawn(lambda: transformers.WhisperForConditionalGeneration(config), 5)


def by_name(model: nn.Module, features: Tensor, target: Tensor) -> Any:
    return model(input_features=features, decoder_input_ids=target, use_cache=False)


OF_SPEECH = Input("input_features", "float32", ("batch", 4, 12))
CASES = {case.name: case for case in TUTORIAL_CASES} | {
    "whisper": Case("whisper", whisper, (OF_SPEECH,), forward=by_name)
}
BEFORE: dict[str, type[nn.Module]] = {
    "tutorial": TutorialSteps, "annotated": AnnotatedSteps, "whisper": WhisperSteps
}  # fmt: skip
# How the forward is called now; that of a folder of transformers is known.
CALLS: dict[str, tuple[Callable[..., Any], ...]] = {
    "tutorial": (with_masks,), "annotated": (annotated,), "whisper": ()
}  # fmt: skip


@pytest.mark.parametrize("name", BEFORE)
@torch.no_grad()
def test_steps_by_hand_are_those_of_the_forward(name: str) -> None:
    case, model = CASES[name], CASES[name].make()
    inputs = draw_inputs(case, 3, {"source_length": 7}, 1)
    target = draw_target(case, 3, 5, 2)
    ids = target.T if case.target.axes[1] == "batch" else target
    steps: Any = BEFORE[name](model)
    given = [x.T if each.axes[1] == "batch" else x
             for x, each in zip(inputs, case.inputs, strict=True)]  # fmt: skip
    found = steps.encode(*given)
    memory = (found,) if isinstance(found, Tensor) else found
    state, made = steps.start(*memory), []
    for position in range(ids.size(1)):
        token = ids[:, position : position + 1]
        of_token, state = steps.step(token, torch.tensor(position), state, memory)
        made.append(of_token)
    wanted = logits(case, model, inputs, target)
    assert torch.allclose(torch.stack(made, 1), wanted, atol=1e-5)


def lines_of(text: str) -> int:
    """Lines of code; without those of a docstring."""
    return sum(
        1
        for line in text.splitlines()
        if line.strip() and not line.strip().startswith(('"""', "assert isinstance"))
    )


def test_lines_of_the_page_are_counted() -> None:
    page = PAGE.read_text(encoding="utf-8").partition("## Lines before and after\n")[2]
    rows = [line for line in page.splitlines() if line.startswith("| ")][1:]
    told = [[int(n) for n in re.findall(r"\| (\d+)", row)] for row in rows]
    (four,) = (block for block in read_blocks(PAGE) if block.heading == "Four lines")
    own = lines_of(four.text)
    counted = []
    for name in BEFORE:
        calls = sum(lines_of(inspect.getsource(call)) for call in CALLS[name])
        before = lines_of(inspect.getsource(BEFORE[name])) + own
        counted.append([before, 1 if name == "whisper" else own + calls])
    assert told == counted
