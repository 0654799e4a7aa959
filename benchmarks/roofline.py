"""Peaks of the machine, and how near a decoder comes to them.

A step of one row reads every weight of the decoder once and computes two operations with each: it
is bound by memory. With many rows the same weights serve all of them: it is bound by the matrix
units. Attention, norms and the argmax, and reading the cache, are left out on both sides.

A shared machine changes its speed by the minute. So its peaks are sampled again and again beside
the runs that they are compared with, and the best sample is compared with the fastest run: both
are what the machine gives while nobody disturbs it.
"""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import onnxruntime as ort
import torch
from onnx import TensorProto, helper, numpy_helper

from benchmarks.configurations import Size

READ = 0.03  # seconds of reading in a sample, at most
SIDE = 1024  # of the square matrices


@dataclass(frozen=True)
class Machine:
    """Bytes, and operations in float32 and int8, a second."""

    bandwidth: float
    float32: float
    int8: float

    def __str__(self) -> str:
        return (
            f"memory {self.bandwidth / 1e9:.0f} GB/s, float32 {self.float32 / 1e9:.0f} GFLOP/s, "
            f"int8 {self.int8 / 1e9:.0f} GOP/s"
        )


@dataclass(frozen=True)
class Part:
    """Products that are computed one after another with the same weights in each step.

    Attributes:
        bytes: of weights that are read.
        float32: operations.
        int8: operations.
    """

    bytes: float
    float32: float
    int8: float

    def of_products(self, machine: Machine) -> float:
        """Seconds that the matrix units take at least."""
        return self.float32 / machine.float32 + self.int8 / machine.int8

    def seconds(self, machine: Machine) -> float:
        """The least that it takes: the units and memory work at the same time."""
        return max(self.of_products(machine), self.bytes / machine.bandwidth)


@dataclass(frozen=True)
class Work:
    """The least that decoding one batch takes.

    Attributes:
        parts: encoder, decoder layers, vocabulary; each waits for the one before.
        working_set: bytes that a step of the decoder reads.
    """

    parts: tuple[Part, ...]
    working_set: float

    @property
    def bytes(self) -> float:
        """Of weights that are read."""
        return sum(part.bytes for part in self.parts)

    def seconds_of_products(self, machine: Machine) -> float:
        """The least that its matrix products take, whatever the memory gives."""
        return sum(part.of_products(machine) for part in self.parts)

    def seconds(self, machine: Machine) -> float:
        """The least that all of it takes."""
        return sum(part.seconds(machine) for part in self.parts)


class Peaks:
    """The largest speeds that were seen so far, with so many threads.

    What the libraries that decode reach in products of large matrices: of each kind several
    libraries are tried. Bandwidth is that of reading as many bytes over and over as a step of the
    decoder reads, part of which caches may hold.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        draw = np.random.default_rng(0)
        x = draw.standard_normal((SIDE, SIDE), np.float32)
        left = draw.integers(0, 255, (SIDE, SIDE), np.uint8)
        right = draw.integers(-63, 63, (SIDE, SIDE), np.int8)
        tensor, signed = torch.from_numpy(x), torch.from_numpy(right)
        out = torch.empty_like(tensor)
        self._products: dict[str, list[Callable[[], object]]] = {
            "float32": [
                _product("MatMul", x, x, TensorProto.FLOAT, threads),
                lambda: torch.mm(tensor, tensor, out=out),
            ],
            "int8": [
                _product("MatMulInteger", left, right, TensorProto.INT32, threads),
                lambda: torch._int_mm(signed, signed),
            ],
        }
        self._memory: dict[int, torch.Tensor] = {}
        self._best: dict[str | int, float] = {}

    def sample(self, working_sets: Iterable[float]) -> None:
        """Measure once more, for about a tenth of a second.

        Args:
            working_sets: bytes that are read over and over.
        """
        torch.set_num_threads(self.threads)
        for kind, ways in self._products.items():
            for way in ways:
                self._note(kind, 2 * SIDE**3, way, 12)
        for size in {math.ceil(given) for given in working_sets}:
            if size not in self._memory:  # of numpy, which asks for large pages
                self._memory[size] = torch.from_numpy(np.ones(max(1, size // 4), np.float32))
            values = self._memory[size]
            for read in (values.sum, values.amax, partial(torch.dot, values, values)):
                self._note(size, size, read, 12)

    def machine(self, working_set: float) -> Machine:
        """The best of all samples, whose working sets included this one."""
        best = self._best
        return Machine(best[math.ceil(working_set)], best["float32"], best["int8"])

    def _note(self, key: str | int, amount: float, run: Callable[[], object], times: int) -> None:
        end = time.perf_counter() + READ
        for turn in range(times):
            start = time.perf_counter()
            run()
            now = time.perf_counter()
            self._best[key] = max(self._best.get(key, 0.0), amount / (now - start))
            if turn and now > end:
                return


def work_of(size: Size, batch: int, source: int, target: int, weights: str, beams: int = 1) -> Work:
    """The work of one batch.

    Args:
        size: of the model.
        batch: rows.
        source: tokens of each.
        target: new tokens of each.
        weights: "float32", "int8"; or float32 whose tokens are chosen by an int8 pre-selection over
            the vocabulary: "preselected" (without the few logits that are computed again in
            float32), or "scored", which computes all logits in float32 as well, after the loop; or
            "ranked": logits of all words from integers of two digits, as beams need them.
        beams: hypotheses of each row.
    """
    feed_forward = 2 * size.d_model * size.d_ff
    square = size.d_model**2
    # Of four projections two stand on the encoder's side in the cross-attention, once a sentence.
    encoder = size.layers * (4 * square + feed_forward + 2 * square)
    layers = size.layers * (4 * square + 2 * square + feed_forward)
    projection = size.d_model * size.vocab_size
    rows = batch * beams
    # Weights that are read, and multiply-adds with them.
    read = (encoder, target * layers, target * projection)
    done = [2.0 * amount for amount in (batch * source * encoder, rows * target * layers,
                                        rows * target * projection)]  # fmt: skip
    if weights == "int8":
        parts = [Part(amount, 0, of) for amount, of in zip(read, done, strict=True)]
        return Work(tuple(parts), layers + projection)
    parts = [Part(4 * amount, of, 0) for amount, of in zip(read, done, strict=True)]
    if weights == "float32":
        return Work(tuple(parts), 4 * (layers + projection))
    if weights == "ranked":  # of the products of digits, that of both second ones is left out
        ranked = Part(2 * read[2], 0, 3 * done[2])
        return Work((*parts[:2], ranked), 4 * layers + 2 * projection)
    screened = Part(read[2], 0, done[2])
    if weights == "scored":
        parts.append(replace(parts[2], bytes=4 * projection))
    return Work((*parts[:2], screened, *parts[3:]), 4 * layers + projection)


def _product(
    operator: str,
    left: np.ndarray[tuple[int, int], np.dtype[np.generic]],
    right: np.ndarray[tuple[int, int], np.dtype[np.generic]],
    kind: int,
    threads: int,
) -> Callable[[], object]:
    graph = helper.make_graph(
        [helper.make_node(operator, ["x", "w"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(left.dtype), None)],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(right, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    # Threads that wait would take the cores of what is measured next.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = ort.InferenceSession(model.SerializeToString(), options)
    return lambda: session.run(None, {"x": left})
