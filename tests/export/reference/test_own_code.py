"""Code of the user's own as the reference: what it is given, and what it may give."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.conftest import CONFIG
from tests.support import own_forwards, tutorial
from tests.support.originals import rebuilt
from tests.support.originals.weights import shake
from tfexport.cli.console import spell
from tfexport.errors import ConfigError
from tfexport.export.parity.checkpoint import EagerCheckpoint
from tfexport.export.parity.eager_run import EagerRun, Shape
from tfexport.export.reference import find_reference
from tfexport.export.reference.own_code import OwnCode
from tfexport.model_src.checkpoint.checkpoint import Checkpoint
from tfexport.model_src.checkpoint.read_options import ReadOptions

Scores = Callable[[Tensor, Tensor], Any]
PAD, BOS = CONFIG["pad_id"], CONFIG["bos_id"]


@pytest.fixture(scope="module")
def model() -> tutorial.TutorialModel:
    return own_forwards.make(tutorial.TutorialModel)


@pytest.fixture(scope="module")
def scores(model: tutorial.TutorialModel) -> Scores:
    """The tutorial model as a user would hand it in: batch first, no padding."""
    return lambda source, target: model(source.T, target.T).transpose(0, 1)


def read(model: nn.Module, reference: Any, config: dict[str, Any] = CONFIG) -> Checkpoint:
    return ReadOptions(config, reference=reference).read(model)


def eager(model: nn.Module, reference: Any) -> EagerCheckpoint:
    return EagerCheckpoint(read(model, reference))


def decode_random(eager: EagerCheckpoint, shape: Shape) -> EagerRun:
    return eager.decode(EagerRun(eager, (), shape))


def test_rows_of_a_call_are_never_padded_and_begin_with_the_start_token(
    model: tutorial.TutorialModel, scores: Scores
) -> None:
    calls = []

    def recorded(source: Tensor, target: Tensor) -> Tensor:
        calls.append((source, target))
        logits: Tensor = scores(source, target)
        return logits

    found = eager(model, recorded)
    assert found.runs_own_code
    run = decode_random(found, (8, 33))
    assert PAD in run.tokens, "the model says pad_id, which the code is not to see"
    lengths = set()
    for source, target in calls:
        assert source.dtype == target.dtype == torch.int64
        assert len(source) == len(target)
        assert not (source == PAD).any()
        assert (target[:, 0] == BOS).all()
        assert not (target[:, 1:] == PAD).any()
        lengths.add(source.size(1))
    assert len(lengths) > 3
    theirs = decode_random(EagerCheckpoint(ReadOptions(CONFIG).read(model)), (8, 33))
    assert (run.tokens == theirs.tokens).all()
    torch.testing.assert_close(
        torch.from_numpy(run.logits),
        torch.from_numpy(theirs.logits).log_softmax(-1),
        atol=1e-4,
        rtol=1e-4,
    )


@pytest.mark.parametrize("form", ["log_softmax", "softmax", "double", "shifted"])
def test_log_probabilities_are_compared_whatever_form_they_have(
    model: tutorial.TutorialModel, scores: Scores, form: str
) -> None:
    forms: dict[str, Callable[[Tensor], Tensor]] = {
        "log_softmax": lambda logits: logits.log_softmax(-1),
        "softmax": lambda logits: logits.softmax(-1),
        "double": lambda logits: logits.double(),
        "shifted": lambda logits: logits + 3,
    }
    plain = decode_random(eager(model, scores), (2, 7))
    other = decode_random(eager(model, lambda *ids: forms[form](scores(*ids))), (2, 7))
    assert (plain.tokens == other.tokens).all()
    torch.testing.assert_close(
        torch.from_numpy(other.logits), torch.from_numpy(plain.logits), atol=1e-4, rtol=1e-4
    )


def given(logits: Tensor) -> Any:
    raise ValueError("no such\n table")


@pytest.mark.messages
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x.transpose(0, 1), r"returned \(4, 2, 19\); .*sequence first, so transpose"),
        (lambda x: x.transpose(1, 2), r"returned \(2, 19, 4\); .*last two axes look swapped"),
        (lambda x: x[:, -1], r"returned \(2, 19\); .*\(B, T, V\) = \(2, 4, 19\): .*last position"),
        (lambda x: x.reshape(-1, 19), r"returned \(8, 19\); .*looks flattened"),
        (lambda x: x[..., :8], r"returned \(2, 4, 8\); .*decoder states; apply the generator"),
        (lambda x: x[..., :7], r"returned \(2, 4, 7\); expected \(B, T, V\) = \(2, 4, 19\)\.$"),
        (lambda x: (x, x), r"returned a tuple of 2; expected a tensor of logits"),
        (lambda x: x.numpy(), r"returned a numpy\.ndarray; expected a tensor"),
        (lambda x: None, r"returned a NoneType; expected a tensor"),
        (lambda x: x.long(), r"returned int64 values; expected floats"),
        (lambda x: x / 0, r"not finite"),
        (torch.rand_like, r"returns different values each time; is dropout active in eval"),
        (given, r"raised ValueError: no such table \(.*_own_code\.py, line \d+\) on inputs"),
    ],
)  # fmt: skip
def test_what_is_no_tensor_of_logits_is_refused_in_one_line_that_names_the_code(
    model: tutorial.TutorialModel, scores: Scores, change: Callable[[Tensor], Any], message: str
) -> None:
    def my_reference(source: Tensor, target: Tensor) -> Any:
        return change(scores(source, target))

    with pytest.raises(ConfigError, match=message) as raised:
        eager(model, my_reference)
    text = str(raised.value)
    assert text.startswith("reference: your my_reference ")
    assert "\n" not in text


def test_failure_at_a_length_names_the_shapes(
    model: tutorial.TutorialModel, scores: Scores
) -> None:
    def short(source: Tensor, target: Tensor) -> Any:
        assert source.size(1) < 30, "too long"
        return scores(source, target)

    found = eager(model, short)
    with pytest.raises(ConfigError, match=r"AssertionError: too long .* \(1, 33\) and") as raised:
        decode_random(found, (1, 33))
    advice = raised.value.message.spelled(spell)
    assert advice.endswith("too long for it, set its limit with --set max_positions=….")


def test_module_with_a_known_signature_is_run_by_it(scores: Scores) -> None:
    module = own_forwards.make(own_forwards.Seq2SeqTransformer).train()
    found = eager(own_forwards.make(tutorial.TutorialModel), module)
    assert found.reference.title == "your Seq2SeqTransformer.forward"
    assert module.training


def test_module_of_two_inputs_is_evaluated_and_left_in_training(
    model: tutorial.TutorialModel,
) -> None:
    class Mine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = own_forwards.make(tutorial.TutorialModel)

        def forward(self, source: Tensor, target: Tensor) -> Tensor:
            assert not self.training
            assert not torch.is_grad_enabled()
            logits: Tensor = self.model(source.T, target.T).transpose(0, 1)
            return logits

    mine = Mine().train()
    found = eager(model, mine)
    assert found.reference.title == "your Mine.forward"
    assert decode_random(found, (2, 7)).tokens.shape == (2, 32)
    assert all(part.training for part in mine.modules())


def test_model_without_embeddings_is_given_vectors() -> None:
    module = shake(rebuilt.Rebuilt())
    config = {"num_heads": 4, "num_encoder_layers": 2, "num_decoder_layers": 3}

    def states(source: Tensor, target: Tensor) -> Tensor:
        assert source.dtype == target.dtype == torch.float32
        found: Tensor = module(source, target, tgt_mask=rebuilt.causal(target.size(1)))
        return found

    checkpoint = read(module, states, config)
    reference = find_reference(checkpoint, checkpoint.build()).reference
    source, mask = torch.randn(2, 5, 16), torch.tensor([[1] * 5, [1] * 3 + [0] * 2])
    found = reference.decode(reference.encode(source, mask), mask, torch.randn(2, 4, 16))
    assert found.shape == (2, 4, 16)


def test_start_token_and_pad_have_to_be_known(
    model: tutorial.TutorialModel, scores: Scores
) -> None:
    with pytest.raises(ConfigError, match=r"pad_id.*bos_id|bos_id.*pad_id"):
        read(model, scores, {})


def test_checkpoint_that_has_been_read_takes_a_reference(
    model: tutorial.TutorialModel, scores: Scores
) -> None:
    checkpoint = ReadOptions(CONFIG).read(model)
    again = ReadOptions(reference=scores).read(checkpoint)
    assert again == checkpoint
    assert again.reference is scores
    title = find_reference(again, again.build()).reference.title
    assert re.fullmatch(r"your <lambda>", title)


def test_causal_code_is_called_once_for_all_prefixes_of_a_row(
    model: tutorial.TutorialModel, scores: Scores
) -> None:
    calls: list[tuple[Tensor, Tensor]] = []

    def counted(source: Tensor, target: Tensor) -> Any:
        calls.append((source, target))
        return scores(source, target)

    def decoded(causal: bool) -> Any:
        always = (lambda source, target: True) if causal else None
        code = eager(model, OwnCode("your code", counted, "reference", always))
        calls.clear()
        return decode_random(code, (8, 33))

    by_prefixes, number = decoded(causal=False), len(calls)
    of_one_call = decoded(causal=True)
    lengths = len({len(row) for row in of_one_call.rows})
    assert len(calls) < number / 2
    assert sum(target.size(1) == 1 for _, target in calls) == lengths, "the first token, alone"
    assert not any((target[:, 1:] == PAD).any() for _, target in calls)
    assert (of_one_call.tokens == by_prefixes.tokens).all()
    assert PAD in of_one_call.tokens, "the code is not to see it"
    torch.testing.assert_close(of_one_call.logits, by_prefixes.logits, atol=1e-5, rtol=1e-5)


def test_causal_code_is_called_for_other_tokens_and_for_lengths_of_another_branch(
    model: tutorial.TutorialModel, scores: Scores
) -> None:
    def other(source: Tensor, target: Tensor) -> Tensor:
        logits: Tensor = scores(source, target)
        return logits.roll(7 if target.size(1) == 9 else 1, dims=-1)

    def decoded(causal: bool) -> Any:
        but_nine = (lambda source, target: target.size(1) != 9) if causal else None
        return decode_random(
            eager(model, OwnCode("your code", other, "reference", but_nine)), (2, 7)
        )

    assert (decoded(causal=True).tokens == decoded(causal=False).tokens).all()
