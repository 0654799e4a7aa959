"""Sizes at which a module acts otherwise, or that a graph must not take for constants."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.support.combinations import few_of
from tests.support.eager_search import Rules, greedy
from tfexport.errors import ExportError, InputError, ParityError
from tfexport.export import Input, export
from tfexport.export.modules.contract import UserModule
from tfexport.export.modules.inputs import LARGEST_ID
from tfexport.export.modules.probes import Runner, _smallest_refused
from tfexport.runtime import Translator

pytestmark = pytest.mark.usefixtures("only_steps")
SIZE, WIDTH = 12, 16
FRAMES = Input("frames", "float32", ("batch", "time", 4))
Row = dict[str, Any]


class Base(nn.Module):
    """Frames to tokens, with a GRU cell that attends to all of them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.project = nn.Linear(4, WIDTH)
        self.embedding = nn.Embedding(SIZE, WIDTH)
        self.cell = nn.GRUCell(WIDTH, WIDTH)
        self.output = nn.Linear(WIDTH, SIZE)
        for parameter in self.parameters():
            parameter.data *= 3

    def encode(self, frames: Tensor) -> Tensor:
        return torch.tanh(self.project(frames))

    def start(self, memory: Tensor) -> Any:
        return (memory.mean(1),)

    def step(self, token: Tensor, position: Tensor, state: Any, memory: Any) -> Any:
        hidden = self.attend(token, state[0], memory[0])
        return self.output(hidden), (hidden,)

    def attend(self, token: Tensor, hidden: Tensor, memory: Tensor) -> Tensor:
        weights = (memory @ hidden[:, :, None]).softmax(1)
        inputs = self.embedding(token[:, 0]) + (weights * memory).sum(1)
        result: Tensor = self.cell(inputs, hidden)
        return result


class Cut(Base):
    def encode(self, frames: Tensor) -> Tensor:
        return super().encode(frames[:, :24])


class Branch(Base):
    def encode(self, frames: Tensor) -> Tensor:
        return super().encode(frames[:, -20:] if frames.size(1) > 20 else frames)


class EvenIsPadded(Base):
    def encode(self, frames: Tensor) -> Tensor:
        padded = F.pad(frames, (0, 0, 0, 1), value=3.0) if frames.size(1) % 2 == 0 else frames
        return super().encode(padded)


class Window(Base):
    """A cache of at most 36 positions."""

    def start(self, memory: Tensor) -> Any:
        return memory.mean(1), memory[:, :0]

    def step(self, token: Tensor, position: Tensor, state: Any, memory: Any) -> Any:
        hidden, past = state
        past = torch.cat([past, self.embedding(token)], 1)[:, -36:]
        hidden = self.attend(token, hidden, memory[0])
        return self.output(hidden + past.mean(1)), (hidden, past)


class Patches(Base):
    """Patches of 16 frames: up to 31 frames are one position."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv1d(4, WIDTH, 16, 16)

    def encode(self, frames: Tensor) -> Tensor:
        memory: Tensor = torch.tanh(self.patches(frames.transpose(1, 2))).transpose(1, 2)
        return memory


class Speaker(Base):
    def __init__(self) -> None:
        super().__init__()
        self.speakers = nn.Embedding(5, WIDTH)

    def encode(self, frames: Tensor, speaker: Tensor) -> Tensor:  # type: ignore[override]
        memory: Tensor = super().encode(frames) + self.speakers(speaker)[:, None]
        return memory


class WideWords(Base):
    """A convolution that is wider than the shortest row that is tried."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, WIDTH)
        self.wide = nn.Conv1d(WIDTH, WIDTH, 6)

    def encode(self, input_ids: Tensor) -> Tensor:
        return torch.tanh(self.wide(self.words(input_ids).transpose(1, 2))).transpose(1, 2)


class SeesAll(Base):
    """A decoder without a mask: later tokens change the logits of earlier ones."""

    start = step = None  # type: ignore[assignment]

    def decode(self, tokens: Tensor, memory: Tensor) -> Tensor:
        x = self.embedding(tokens)
        logits: Tensor = self.output(torch.tanh(x + x.mean(1, keepdim=True) + memory.mean(1, True)))
        return logits


class Image(Base):
    def encode(self, image: Tensor) -> Tensor:
        return torch.tanh(self.project(image.mean(1)))


def export_bundle(model: nn.Module, folder: Path, *inputs: Input, **options: Any) -> Path:
    given: dict[str, Any] = {"pad_id": 0, "bos_id": 1, "eos_id": 2, "max_length": 8, **options}
    bundle = folder / "a.bundle"
    export(model.eval(), bundle, inputs=inputs or [FRAMES], **given)
    return bundle


@torch.no_grad()
def eager(model: Any, row: Row, steps: int = 8) -> list[int]:
    memory = model.encode(*(torch.from_numpy(np.asarray(each))[None] for each in row.values()))
    tokens = [1]
    state = model.start(memory) if model.start else None
    for position in range(steps):
        if state is None:
            logits = model.decode(torch.tensor([tokens]), memory)[:, -1]
        else:
            newest = torch.tensor([tokens[-1:]])
            logits, state = model.step(newest, torch.tensor(position), state, (memory,))
        tokens.append(int(logits.argmax()))
        if tokens[-1] == 2:
            return tokens[1:-1]
    return tokens[1:]


def frames(length: int) -> Row:
    drawn = np.random.default_rng(length).normal(size=(length, 4))
    return {"frames": drawn.astype(np.float32)}


def check(model: nn.Module, bundle: Path, rows: list[Row]) -> None:
    with Translator(bundle) as translator:
        found = [each.hypotheses[0].tokens for each in translator.generate_from(rows)]
    assert found == [eager(model, row) for row in rows]


@pytest.mark.parametrize("model", [Cut, Branch, EvenIsPadded])
def test_code_that_acts_otherwise_at_some_sizes_is_refused(
    model: type[Base], tmp_path: Path
) -> None:
    with pytest.raises((ExportError, ParityError)) as caught:
        export_bundle(model(), tmp_path)
    assert "\n" not in str(caught.value)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.messages
def test_a_cache_that_is_a_window_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"Window.step \(test_sizes.py, line \d+\): returns"):
        export_bundle(Window(), tmp_path, max_length=60)
    export_bundle(Window(), tmp_path, max_length=30)  # shorter than the window


def test_a_size_that_changes_late_is_not_a_constant(tmp_path: Path) -> None:
    model = Patches()
    check(model, export_bundle(model, tmp_path), [frames(16), frames(33), frames(100)])


def test_numbers_of_an_input_without_further_axes(tmp_path: Path) -> None:
    model = Speaker()
    bundle = export_bundle(model, tmp_path, FRAMES, Input("speaker", "int64", ("batch",)))
    check(model, bundle, [{**frames(6), "speaker": np.int64(i)} for i in (0, 4, 2)])
    with Translator(bundle) as translator:
        for wrong in (-1, 5):
            with pytest.raises(InputError, match=r"'speaker' holds numbers .* from 0 to 4"):
                translator.generate_from([{**frames(6), "speaker": np.int64(wrong)}])


def test_the_vocabulary_is_that_of_sizes_that_work(tmp_path: Path) -> None:
    ids = Input("input_ids", "int64", ("batch", "source_length"))
    bundle = export_bundle(WideWords(), tmp_path, ids)
    with Translator(bundle) as translator:
        assert translator.manifest.limits.source_vocab_size == 50
        row = {"input_ids": np.arange(40, 49)}
        found = translator.generate([row["input_ids"].tolist()])[0].hypotheses[0].tokens
    assert found == eager(WideWords(), row)


def test_examples_of_square_images_do_not_join_their_axes(tmp_path: Path) -> None:
    image = Input("image", "float32", ("batch", "height", "width", 4))
    rows = [
        {"image": np.random.default_rng(n).normal(size=(n, n, 4)).astype(np.float32)}
        for n in (8, 12, 16, 20)
    ]
    model = Image()
    check(
        model,
        export_bundle(model, tmp_path, image, examples=rows),
        [*rows, {"image": rows[0]["image"][:5]}],
    )


def test_a_decoder_that_sees_all_tokens_is_run_for_each(tmp_path: Path) -> None:
    model = SeesAll()
    bundle = export_bundle(model, tmp_path)
    check(model, bundle, [frames(5), frames(9)])
    with Translator(bundle) as translator:
        module = translator.manifest.module
    assert module is not None
    assert module["recomputes"]
    assert not module["many_tokens"]


class Translating(nn.Module):
    """The memory is the state of a GRU, (layers, B, hidden), and no step is given."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(11, 8), nn.Embedding(12, 8)
        self.encoder, self.decoder = nn.GRU(8, 8, 2), nn.GRU(8, 8, 2)
        self.out = nn.Linear(8, 12)

    def encode(self, input_ids: Tensor) -> Tensor:
        hidden: Tensor = self.encoder(self.source(input_ids.T))[1]
        return hidden

    def decode(self, tokens: Tensor, hidden: Tensor) -> Tensor:
        logits: Tensor = self.out(self.decoder(self.target(tokens.T), hidden)[0])
        return logits.transpose(0, 1)


@pytest.mark.parametrize("large", few_of([False, True], True))
def test_memory_has_its_batch_behind_another_axis_without_steps(
    large: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if large:  # as weights of a useful size are
        monkeypatch.setattr("tfexport.export.graphs.kernels._LARGE", 100)
    torch.manual_seed(1)
    model = Translating().eval()
    inputs = [Input("input_ids", "int64", ("batch", "length"))]
    export(model, tmp_path / "a.bundle", inputs=inputs, pad_id=0, bos_id=1, eos_id=2,
                  max_length=9)  # fmt: skip
    row = {"input_ids": np.array([4, 5, 6, 7])}
    with Translator(tmp_path / "a.bundle") as translator:
        (found,) = translator.generate([row["input_ids"].tolist()])
    assert found.hypotheses[0].tokens == greedy(model, row, Rules(max_length=9)).tokens


class AllPixels(Base):
    """Attention between all pixels: its numbers grow with the fourth power of the sides."""

    def encode(self, picture: Tensor) -> Tensor:
        pixels = super().encode(picture.flatten(2).transpose(1, 2))
        out: Tensor = (pixels @ pixels.transpose(1, 2)).softmax(-1) @ pixels
        return out


class TorchAttention(Base):
    """As ``AllPixels``, by torch's own layer."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def encode(self, picture: Tensor) -> Tensor:
        pixels = super().encode(picture.flatten(2).transpose(1, 2))
        out: Tensor = self.attention(pixels, pixels, pixels)[0]
        return out


class ByKeywords(Base):
    """As ``AllPixels``, by torch's own function."""

    def encode(self, picture: Tensor) -> Tensor:
        pixels = super().encode(picture.flatten(2).transpose(1, 2))
        return F.scaled_dot_product_attention(key=pixels, query=pixels, value=pixels)


class Means(Base):
    """The mean of ids and that of wide frames, of any lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(512, WIDTH)

    def encode(self, ids: Tensor, frames: Tensor) -> Tensor:  # type: ignore[override]
        of_ids: Tensor = self.embedding(ids).mean(1)[:, None]
        of_frames: Tensor = self.wide(frames).mean(1)[:, None]
        return of_ids + of_frames


class Lengths(Base):
    """Two lengths of packed rows, one behind a stride, and a class."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(4, WIDTH, batch_first=True)
        self.classes = nn.Embedding(9, WIDTH)

    def packed(self, rows: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(
            rows, lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        out, _ = nn.utils.rnn.pad_packed_sequence(
            self.rnn(packed)[0], batch_first=True, total_length=rows.size(1)
        )
        return out

    def encode(  # type: ignore[override]
        self, one: Tensor, two: Tensor, of_one: Tensor, of_two: Tensor, kind: Tensor
    ) -> Any:
        first = self.packed(one[:, ::2], (of_one + 1) // 2)
        second = self.packed(two, of_two)
        return torch.cat([first, second, self.classes(kind)[:, None]], 1)


PICTURE = Input("picture", "float32", ("batch", 4, "height", "width"))
IDS = Input("ids", "int64", ("batch", "length"))
WIDE = Input("frames", "float32", ("batch", "time", 512))


def runner_of(model: nn.Module, *inputs: Input) -> Runner:
    return Runner(UserModule(model.eval(), len(inputs)), inputs, start_id=1, steps=2)


@pytest.mark.parametrize(
    ("build", "inputs", "largest"),
    [
        (AllPixels, (PICTURE,), 24),
        (TorchAttention, (PICTURE,), 24),
        (ByKeywords, (PICTURE,), 24),
        (Base, (FRAMES,), 96),
        (Means, (IDS, WIDE), 96),
    ],
)
def test_large_sizes_are_tried_where_no_inner_tensor_becomes_too_large(
    build: type[nn.Module], inputs: tuple[Input, ...], largest: int
) -> None:
    settings = runner_of(build(), *inputs).settings(())
    assert max(sizes[axis] for sizes in settings for axis in [*sizes][:1]) == largest


def test_lengths_have_no_bound_and_classes_have_one() -> None:
    one, two = (Input(name, "float32", ("batch", f"length_{name}", 4)) for name in ("one", "two"))
    lone = (Input(name, "int64", ("batch",)) for name in ("of_one", "of_two", "kind"))
    runner = runner_of(Lengths(), one, two, *lone)
    runner.settings(())
    assert runner.below == {"of_one": LARGEST_ID, "of_two": LARGEST_ID, "kind": 9}


@pytest.mark.parametrize("bound", [1, 2, 3, 12, 13, 39, 40, 41, 64, 999, LARGEST_ID])
@pytest.mark.parametrize("likely", [(), (12,), (64, 12, 40), (1, 1000)])
def test_the_smallest_refused_number_is_found_whatever_is_likely(
    bound: int, likely: tuple[int, ...]
) -> None:
    tried: list[int] = []

    def accepts(number: int) -> bool:
        tried.append(number)
        return number < bound

    assert _smallest_refused(accepts, likely) == bound
    if bound in likely:
        assert len(tried) <= 3, "the likely ones by bisection, and the one below"
