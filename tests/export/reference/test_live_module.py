"""Live modules whose own forward is run unasked, and left as they were."""

import re
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.conftest import CONFIG
from tests.support import own_forwards, tutorial
from tests.support.originals import annotated, rebuilt, rmsnorm
from tests.support.originals.weights import shake
from tfexport.export.reference import (
    ChosenReference,
    OwnCodeReference,
    build_reference,
    find_reference,
)
from tfexport.export.reference.live_module import evaluated
from tfexport.model_src import TransformerConfig, build_transformer
from tfexport.model_src.checkpoint.checkpoint import Checkpoint
from tfexport.model_src.checkpoint.read_options import ReadOptions

HEADS = {**CONFIG, "num_heads": 4}
REBUILT = {"num_heads": 4, "num_encoder_layers": 2, "num_decoder_layers": 3}


def stock(batch_first: bool) -> nn.Transformer:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return shake(nn.Transformer(16, 4, 2, 2, 24, batch_first=batch_first))


# A live module: how it is made, its config, and what verify calls it.
LIVE: dict[str, tuple[Any, dict[str, Any], str]] = {
    "tutorial": (
        lambda: own_forwards.make(own_forwards.Seq2SeqTransformer), CONFIG,
        "your Seq2SeqTransformer.forward",
    ),
    "tutorial, encode and decode": (
        lambda: own_forwards.make(own_forwards.Steps), CONFIG, "your Steps.encode and decode",
    ),
    "notebook": (lambda: shake(own_forwards.Notebook()), HEADS, "your Notebook.forward"),
    "notebook, encode and decode": (
        lambda: shake(own_forwards.NotebookSteps()), HEADS, "your NotebookSteps.encode and decode",
    ),
    "notebook with a generator inside": (
        lambda: shake(annotated.Annotated()), HEADS, "your Annotated.forward",
    ),
    "rmsnorm": (
        lambda: shake(own_forwards.RMSNormNotebook()), CONFIG, "your RMSNormNotebook.forward",
    ),
    "nn.Transformer": (lambda: stock(False), {}, "your Transformer.forward"),
    "nn.Transformer, batch first": (lambda: stock(True), {}, "your Transformer.forward"),
    "rebuilt": (lambda: shake(rebuilt.Rebuilt()), REBUILT, "your Rebuilt.forward"),
}  # fmt: skip


def found_for(module: nn.Module, config: dict[str, Any]) -> tuple[Checkpoint, ChosenReference]:
    checkpoint = ReadOptions(config).read(module)
    return checkpoint, find_reference(checkpoint, checkpoint.build())


def inputs_of(checkpoint: Checkpoint) -> tuple[Tensor, Tensor, Tensor]:
    """Source, mask and target of rows that are not equally long."""
    mask = torch.tensor([[1] * 6, [1] * 4 + [0] * 2, [1] + [0] * 5])
    if checkpoint.config.has_embeddings:
        return torch.randint(3, 17, (3, 6)), mask, torch.randint(3, 17, (3, 5))
    width = checkpoint.config.d_model
    return torch.randn(3, 6, width), mask, torch.randn(3, 5, width)


@pytest.mark.parametrize("kind", LIVE)
def test_known_signature_is_run_and_says_what_the_original_says(kind: str) -> None:
    make, config, title = LIVE[kind]
    checkpoint, found = found_for(make(), config)
    assert (found.reference.title, found.not_run) == (title, None)
    original = build_reference(checkpoint, checkpoint.build())
    source, mask, target = inputs_of(checkpoint)
    ours, theirs = (
        each.decode(each.encode(source, mask), mask, target) for each in (found.reference, original)
    )
    if checkpoint.config.has_embeddings:
        theirs = theirs.log_softmax(-1)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["tutorial", "notebook", "nn.Transformer"])
def test_module_in_half_precision_is_run_in_float32_and_stays_as_it_is(kind: str) -> None:
    make, config, title = LIVE[kind]
    module = make().half()
    checkpoint, found = found_for(module, config)
    assert found.reference.title == title
    source, mask, target = inputs_of(checkpoint)
    original = build_reference(checkpoint, checkpoint.build())
    ours = found.reference.decode(found.reference.encode(source, mask), mask, target)
    theirs = original.decode(original.encode(source, mask), mask, target)
    if checkpoint.config.has_embeddings:
        theirs = theirs.log_softmax(-1)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float16}


def test_training_goes_on_where_it_was_even_if_the_module_raises() -> None:
    module = own_forwards.make(own_forwards.Seq2SeqTransformer).train()
    module.transformer.encoder.eval()
    before = {name: part.training for name, part in module.named_modules()}
    assert len(set(before.values())) == 2
    _, found = found_for(module, CONFIG)
    assert isinstance(found.reference, OwnCodeReference)
    assert {name: part.training for name, part in module.named_modules()} == before
    inside = []

    def fail() -> None:
        with evaluated(module):
            inside.append(
                (any(part.training for part in module.modules()), torch.is_grad_enabled())
            )
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert inside == [(False, False)]
    assert {name: part.training for name, part in module.named_modules()} == before
    assert torch.is_grad_enabled()


class Renamed(own_forwards.Seq2SeqTransformer):
    def forward(self, src, tgt, *masks):  # type: ignore[no-untyped-def]
        raise AssertionError("is not run")

    encode = decode = None  # type: ignore[assignment]


class Dropping(own_forwards.Seq2SeqTransformer):
    def forward(  # type: ignore[no-untyped-def, override]
        self, src, trg, src_mask, tgt_mask, src_padding_mask, tgt_padding_mask,
        memory_key_padding_mask,
    ):  # fmt: skip
        return torch.rand(*trg.shape, 19)


class Raising(Dropping):
    def forward(  # type: ignore[no-untyped-def, override]
        self, src, trg, src_mask, tgt_mask, src_padding_mask, tgt_padding_mask,
        memory_key_padding_mask,
    ):  # fmt: skip
        raise KeyError("a table")


@pytest.mark.messages
@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Renamed, r"^Renamed\.forward\(src, tgt, masks\) has an unknown signature$"),
        (
            tutorial.TutorialModel,
            r"^TutorialModel\.forward\(source, target, padding\) has an unknown sig",
        ),
        (Dropping, r"^your Dropping\.forward returns different values each time"),
        (Raising, r"^your Raising\.forward raised KeyError: 'a table' \(.*\.py, line \d+\) on inp"),
    ],
)
def test_module_that_cannot_be_run_unasked_is_compared_with_the_original_and_says_why(
    kind: type[tutorial.TutorialModel], reason: str
) -> None:
    _, found = found_for(own_forwards.make(kind), CONFIG)
    assert found.reference.title == "torch.nn.Transformer"
    assert found.not_run is not None
    assert re.search(reason, found.not_run), found.not_run
    assert "\n" not in found.not_run


def test_signature_of_another_layout_is_not_taken_for_a_known_one() -> None:
    class Alike(rmsnorm.RMSNormModel):
        def forward(self, src: Any, tgt: Any, src_mask: Any, tgt_mask: Any) -> Tensor:  # type: ignore[override]
            raise AssertionError("is not run")

    _, found = found_for(shake(Alike()), CONFIG)
    assert found.not_run == ("Alike.forward(src, tgt, src_mask, tgt_mask) has an unknown signature")


def test_output_that_may_be_states_or_logits_is_not_guessed() -> None:
    _, found = found_for(shake(own_forwards.Notebook(size=16, target=16)), HEADS)
    assert found.not_run is not None
    assert "an output of width 16 is ambiguous" in found.not_run


def test_module_that_contradicts_itself_about_its_axes_is_not_run() -> None:
    module = own_forwards.make(own_forwards.Seq2SeqTransformer)
    module.transformer.batch_first = True
    _, found = found_for(module, CONFIG)
    assert found.not_run == "Seq2SeqTransformer does not have one common value of batch_first"


def test_own_module_of_the_project_needs_no_such_remark() -> None:
    sizes: dict[str, Any] = {"d_model": 8, "num_heads": 2, "d_ff": 12, "max_positions": 8}
    layers: dict[str, Any] = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    config = TransformerConfig(**sizes, **layers, source_vocab_size=17, target_vocab_size=17)
    _, found = found_for(build_transformer(config), {})
    assert found.not_run is None
    assert found.reference.no_original is not None
