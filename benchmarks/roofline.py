"""Peaks of the machine, and how near a decoder comes to them.

A step of one row reads every weight of the decoder once and computes two operations with each: it
is bound by memory. With many rows the same weights serve all of them: it is bound by the matrix
units. Attention, norms and the argmax, and reading the cache, are left out on both sides.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import numpy as np
import onnxruntime as ort
import torch
from onnx import TensorProto, helper, numpy_helper

from benchmarks.configurations import Size

READ = 640  # MB, beyond what caches hold for long
SIDE = 2048  # of the square matrices
RUNS = 9


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
class Work:
    """The least that decoding one batch takes: bytes of weights, operations of either kind."""

    bytes: float
    float32: float
    int8: float

    def seconds_of_products(self, machine: Machine) -> float:
        """The least that its matrix products take, whatever the memory gives."""
        return self.float32 / machine.float32 + self.int8 / machine.int8


def measure_machine(threads: int) -> Machine:
    """The machine's own peaks with so many threads, through the libraries that decode."""
    torch.set_num_threads(threads)
    values = torch.ones(READ * 250_000)
    bandwidth = READ * 1e6 / _seconds(lambda: values.sum())
    operations = 2 * SIDE**3
    draw = np.random.default_rng(0)
    x = draw.standard_normal((SIDE, SIDE), np.float32)
    single = _product("MatMul", x, x, TensorProto.FLOAT, threads)
    left = draw.integers(0, 255, (SIDE, SIDE), np.uint8)
    right = draw.integers(-127, 127, (SIDE, SIDE), np.int8)
    quantised = _product("MatMulInteger", left, right, TensorProto.INT32, threads)
    return Machine(bandwidth, operations / _seconds(single), operations / _seconds(quantised))


def work_of(size: Size, batch: int, source: int, target: int, weights: str, beams: int = 1) -> Work:
    """The work of one batch.

    Args:
        size: of the model.
        batch: rows.
        source: tokens of each.
        target: new tokens of each.
        weights: "float32", "int8"; or float32 whose tokens are chosen by an int8 pre-selection over
            the vocabulary: "preselected" (without the few logits that are computed again in
            float32), or "scored", which computes all logits in float32 as well, after the loop.
        beams: hypotheses of each row.
    """
    feed_forward = 2 * size.d_model * size.d_ff
    square = size.d_model**2
    # Of four projections two stand on the encoder's side in the cross-attention, once a sentence.
    encoder = size.layers * (4 * square + feed_forward + 2 * square)
    layers = size.layers * (4 * square + 2 * square + feed_forward)
    projection = size.d_model * size.vocab_size
    read = encoder + target * layers, target * projection
    done = (
        2 * batch * (source * encoder + beams * target * layers),
        (2 * batch * beams * target * projection),
    )
    if weights == "int8":
        return Work(sum(read), 0, sum(done))
    if weights == "float32":
        return Work(4 * sum(read), sum(done), 0)
    if weights == "scored":
        return Work(4 * (read[0] + projection) + read[1], sum(done), done[1])
    return Work(4 * read[0] + read[1], *done)


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
    session = ort.InferenceSession(model.SerializeToString(), options)
    return lambda: session.run(None, {"x": left})


def _seconds(run: Callable[[], object]) -> float:
    run()
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return median(times)
