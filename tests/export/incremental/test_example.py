"""Inputs that are declared by an example: axes that are found by running the forward."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.support.paths import VERSION_1
from tfexport.errors import ConfigError
from tfexport.export import Input, export, verify
from tfexport.export.incremental.example import declare
from tfexport.export.modules.contract import ModuleError

WORDS, SIZE = 13, 4


class Decoder(nn.Module):
    """Reads the mean of a source's vectors; every subclass makes these in another way."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.out = nn.Embedding(WORDS, SIZE), nn.Linear(SIZE, WORDS)

    def decode(self, memory: Tensor, tgt: Tensor) -> Tensor:
        """(B, S, E) and (B, T) -> (B, T, V)."""
        query = self.tokens(tgt)
        attended = torch.bmm(torch.bmm(query, memory.transpose(1, 2)).softmax(-1), memory)
        logits: Tensor = self.out(query + attended)
        return logits


class Text(Decoder):
    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.decode(self.tokens(src), tgt)


class BatchSecond(Decoder):
    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.decode(self.tokens(src).transpose(0, 1), tgt.T).transpose(0, 1)


class Masked(Decoder):
    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> Tensor:
        return self.decode(self.tokens(input_ids) * attention_mask[:, :, None], labels)


class Two(Decoder):
    """Two sources of their own lengths, the second of them frames of three values."""

    def __init__(self) -> None:
        super().__init__()
        self.frames = nn.Linear(3, SIZE)

    def forward(self, first: Tensor, past: Tensor, tgt: Tensor) -> Tensor:
        return self.decode(torch.cat([self.tokens(first), self.frames(past)], dim=1), tgt)


class Picture(Decoder):
    """Patches of 4 by 4 with a table of their positions: 28 by 28 only, but 29 runs as well."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, SIZE, 4, stride=4)
        self.places = nn.Parameter(torch.randn(1, 49, SIZE))

    def forward(self, image: Tensor, tgt: Tensor) -> Tensor:
        patches = self.patches(image).flatten(2).transpose(1, 2)
        return self.decode(patches + self.places, tgt)


class Strided(Decoder):
    """A stride rounds 28 and 27 to the same size, for which the linear layer is."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, SIZE, 3, stride=2, padding=1)
        self.flat = nn.Linear(14 * 14, 5)

    def forward(self, image: Tensor, tgt: Tensor) -> Tensor:
        return self.decode(self.flat(self.conv(image).flatten(2)).transpose(1, 2), tgt)


class Speech(Decoder):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(8, SIZE, 3, stride=2, padding=1)

    def forward(self, mel: Tensor, tgt: Tensor) -> Tensor:
        return self.decode(self.conv(mel).transpose(1, 2), tgt)


class Multiples(Decoder):
    """Only lengths that are multiples of 8."""

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.decode(self.tokens(src).unflatten(1, (-1, 8)).mean(2), tgt)


class FewMultiples(Multiples):
    """Only lengths of 8 and 16."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Embedding(2, SIZE)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        places: Tensor = self.places(torch.arange(src.size(1) // 8))
        return super().forward(src, tgt) + places.sum()


class Rounded(Decoder):
    """A stride rounds 28, 29 and 30 to the same size, for which the linear layer is."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, SIZE, 3, stride=3, padding=1)
        self.flat = nn.Linear(10 * 10, 5)

    def forward(self, image: Tensor, tgt: Tensor) -> Tensor:
        return self.decode(self.flat(self.conv(image).flatten(2)).transpose(1, 2), tgt)


class AnyPicture(Decoder):
    """Pictures of any height and width."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, SIZE, 3, padding=1)

    def forward(self, image: Tensor, tgt: Tensor) -> Tensor:
        return self.decode(self.conv(image).flatten(2).transpose(1, 2), tgt)


class LongKernel(Decoder):
    """Half of 7 frames are fewer than the kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(8, SIZE, 5)

    def forward(self, mel: Tensor, tgt: Tensor) -> Tensor:
        return self.decode(self.conv(mel).transpose(1, 2), tgt)


class Scaled(Decoder):
    """Three channels, each with its factor, to which one is broadcast."""

    def __init__(self) -> None:
        super().__init__()
        self.factors, self.frames = nn.Parameter(torch.randn(3, 1)), nn.Linear(3, SIZE)

    def forward(self, mel: Tensor, tgt: Tensor) -> Tensor:
        return self.decode(self.frames((mel * self.factors).transpose(1, 2)), tgt)


class Pairs(Decoder):
    """Ids of two features."""

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.decode(self.tokens(src).mean(2), tgt)


class Fixed(Decoder):
    """A source of 7 ids."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.randn(7, SIZE))

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.decode(self.tokens(src) + self.places, tgt)


class Bag(Decoder):
    """Runs with either axis of the target as the batch; by the second its rows would change."""

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        x = self.tokens(tgt)
        logits: Tensor = self.out(x + x.mean(1, keepdim=True)) + 0 * src.sum()
        return logits


class FewTokens(Decoder):
    """A table of positions that the example fills."""

    def __init__(self, count: int = 5) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.randn(count, SIZE))

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        if tgt.size(1) > len(self.places):
            raise ValueError("too long")
        return self.decode(self.tokens(src), tgt)


class Unrelated(Decoder):
    """No row of the source meets a row of the target, so that nothing shows the batch."""

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        logits: Tensor = self.out(self.tokens(tgt) + self.tokens(src).mean())
        return logits


class OneTarget(Decoder):
    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.decode(self.tokens(src), tgt.reshape(-1, 5))


def ids(*shape: int) -> Tensor:
    return torch.randint(3, WORDS, shape, generator=torch.Generator().manual_seed(len(shape)))


def source(*axes: int | str) -> Input:
    return Input("input_ids", "int64", axes)


BATCH_FIRST, SECOND = ("batch", "target_length"), ("target_length", "batch")
FOUND: dict[str, tuple[Callable[[], nn.Module], tuple[Any, ...], tuple[Input, ...], Any]] = {
    "batch first": (Text, (ids(3, 7), ids(3, 5)), (source("batch", "source_length"),), BATCH_FIRST),
    "batch second": (
        BatchSecond, (ids(7, 3), ids(5, 3)), (source("source_length", "batch"),), SECOND
    ),
    "all sizes equal": (Text, (ids(4, 4), ids(4, 4)), (source("batch", "source_length"),),
                        BATCH_FIRST),
    "all equal, batch second": (BatchSecond, (ids(4, 4), ids(4, 4)),
                                (source("source_length", "batch"),), SECOND),
    "one row": (Text, (ids(1, 7), ids(1, 5)), (source("batch", "source_length"),), BATCH_FIRST),
    "arrays": (Text, (ids(3, 7).numpy(), np.ones((3, 2), np.int64)),
               (source("batch", "source_length"),), BATCH_FIRST),
    "a mask": (
        Masked, (ids(3, 7), torch.ones(3, 7, dtype=torch.int64), ids(3, 5)),
        (source("batch", "source_length"),
         Input("attention_mask", "int64", ("batch", "source_length"))), BATCH_FIRST,
    ),
    "two inputs": (
        Two, (ids(3, 7), torch.randn(3, 9, 3), ids(3, 5)),
        (Input("first", "int64", ("batch", "first_length")),
         Input("past_input", "float32", ("batch", "past_input_length", 3))), BATCH_FIRST,
    ),
    "two inputs of one length": (
        Two, (ids(3, 7), torch.randn(3, 7, 3), ids(3, 5)),
        (Input("first", "int64", ("batch", "first_length")),
         Input("past_input", "float32", ("batch", "past_input_length", 3))), BATCH_FIRST,
    ),
    "an image": (Picture, (torch.randn(2, 1, 28, 28), ids(2, 5)),
                 (Input("image", "float32", ("batch", 1, 28, 28)),), BATCH_FIRST),
    "an image and strides": (Strided, (torch.randn(2, 3, 28, 28), ids(2, 5)),
                             (Input("image", "float32", ("batch", 3, 28, 28)),), BATCH_FIRST),
    "an image that strides round": (Rounded, (torch.randn(2, 3, 29, 29), ids(2, 5)),
                                    (Input("image", "float32", ("batch", 3, 29, 29)),),
                                    BATCH_FIRST),
    "an image of any size": (
        AnyPicture, (torch.randn(2, 1, 12, 15), ids(2, 5)),
        (Input("image", "float32", ("batch", 1, "image_axis_2", "image_axis_3")),), BATCH_FIRST,
    ),
    "a kernel of more than half": (LongKernel, (torch.randn(2, 8, 7), ids(2, 5)),
                                   (Input("mel", "float32", ("batch", 8, "mel_length")),),
                                   BATCH_FIRST),
    "channels that are broadcast": (Scaled, (torch.randn(2, 3, 9), ids(2, 5)),
                                    (Input("mel", "float32", ("batch", 3, "mel_length")),),
                                    BATCH_FIRST),
    "ids of three axes": (Pairs, (ids(3, 7, 1).repeat(1, 1, 4), ids(3, 5)),
                          (Input("src", "int64", ("batch", "src_axis_1", "src_axis_2")),),
                          BATCH_FIRST),
    "ids of one length": (Fixed, (ids(3, 7), ids(3, 5)),
                          (Input("src", "int64", ("batch", 7)),), BATCH_FIRST),
    "rows that stay": (Bag, (ids(4), ids(4, 4)), (Input("src", "int64", ("batch",)),),
                       BATCH_FIRST),
    "as many tokens as it takes": (FewTokens, (ids(3, 7), ids(3, 5)),
                                   (source("batch", "source_length"),), BATCH_FIRST),
    "speech": (Speech, (torch.randn(2, 8, 21), ids(2, 5)),
               (Input("mel", "float32", ("batch", 8, "mel_length")),), BATCH_FIRST),
}  # fmt: skip


@pytest.mark.parametrize("name", FOUND)
def test_axes_are_found_by_running(name: str) -> None:
    make, example, inputs, target = FOUND[name]
    found = declare(make().eval(), example)
    assert found.inputs == inputs
    assert found.target == Input("target", "int64", target)
    assert [array.ndim for array in found.row.values()] == [len(each.axes) - 1 for each in inputs]


def test_names_are_those_of_the_call() -> None:
    def call(model: nn.Module, pixels: Tensor, tgt: Tensor) -> Any:
        return (model(input_ids=pixels, attention_mask=pixels > 0, labels=tgt),)

    found = declare(Masked().eval(), (ids(3, 7).int(), ids(3, 5).int()), call)
    assert found.inputs == (Input("pixels", "int32", ("batch", "pixels_length")),)
    assert found.target.dtype == "int32"


def test_arguments_without_names_have_numbers() -> None:
    def call(model: nn.Module, *given: Tensor) -> Any:
        return model(*given)

    class Unsigned:
        __signature__ = 3  # as a function that is written in C has none
        __call__ = staticmethod(call)

    example = (ids(3, 7), torch.randn(3, 9, 3), ids(3, 5))
    for each in (call, Unsigned()):
        found = declare(Two().eval(), example, each)
        assert [it.name for it in found.inputs] == ["input_0", "input_1"]


def test_the_row_is_the_first_of_the_batch() -> None:
    src = ids(7, 3)
    found = declare(BatchSecond().eval(), (src, ids(5, 3)))
    assert found.row["input_ids"].tolist() == src[:, 0].tolist()


@pytest.mark.parametrize(
    ("make", "example", "told"),
    [
        (Text, ids(3, 7), "is not a tuple of tensors"),
        (Text, (ids(3, 7),), "the target ids last"),
        (Text, (ids(3, 7), [1, 2]), "argument 1: [1, 2] is not a tensor"),
        (Text, (ids(3, 7), torch.randn(3, 5)), "is float32 (3, 5); expected int64 (B, T)"),
        (Text, (ids(3, 7), ids(3)), "is int64 (3,); expected int64 (B, T)"),
        (Text, (torch.randn(3, 7).half(), ids(3, 5)), "argument 0: float16 is not one of"),
        (Text, (np.array(["a"]), ids(3, 5)), "argument 0: <U1 is not one of"),
        (Text, (ids(3, 0), ids(3, 5)), "argument 0: its shape (3, 0) has no values"),
        (Text, (ids(3, 7), ids(2, 5)), "(3, 7), (2, 5), no axes are of one size"),
        (Unrelated, (ids(4, 4), ids(4, 4)), "which axes are the batch cannot be told"),
        (Multiples, (ids(3, 16), ids(3, 5)), "whether axis 1 of src, of size 16, varies"),
        (FewMultiples, (ids(3, 16), ids(3, 5)), "whether axis 1 of src, of size 16, varies"),
        (Text, (ids(3, 2), ids(3, 5)), "whether axis 1 of src, of size 2, varies"),
        (Text, (ids(3, 1), ids(3, 5)), "whether axis 1 of src, of size 1, varies"),
    ],
)
def test_what_an_example_leaves_open_is_named(
    make: Callable[[], nn.Module], example: Any, told: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        declare(make().eval(), example)
    assert str(caught.value).startswith("example: ")
    assert told in str(caught.value)
    assert "Give inputs in its place" in str(caught.value)


def test_a_forward_that_fails_is_named_with_its_line() -> None:
    with pytest.raises(ModuleError, match=r"example: forward does not run with its shapes: Text\."):
        declare(Text().eval(), (ids(3, 7) + WORDS, ids(3, 5)))
    with pytest.raises(ModuleError, match=r"with [46] target ids: OneTarget.*test_example\.py"):
        declare(OneTarget().eval(), (ids(3, 7), ids(3, 5)))
    with pytest.raises(ModuleError, match=r"with 3 target ids: FewTokens.*too long"):
        declare(FewTokens(2).eval(), (ids(3, 7), ids(3, 2)))  # one token alone may be a branch


def test_an_example_is_in_place_of_inputs(tmp_path: Path) -> None:
    example = (ids(3, 7), ids(3, 5))
    ids_of: dict[str, Any] = {"pad_id": 0, "bos_id": 1, "eos_id": 2}
    with pytest.raises(ConfigError) as caught:
        export(Text(), tmp_path / "a", example=example, inputs=[source("batch", "source_length")],
               target=Input("target", "int64", BATCH_FIRST), max_length=9, **ids_of)  # fmt: skip
    assert "omit inputs" in str(caught.value)
    assert "omit target" in str(caught.value)
    with pytest.raises(ConfigError, match="omit inputs"):
        verify(VERSION_1, Text(), example=example, inputs=[source("batch", "source_length")])
    with pytest.raises(ConfigError, match="inputs, or example, is required"):
        export(Text(), tmp_path / "a", max_length=9, **ids_of)
    assert not list(tmp_path.iterdir())
