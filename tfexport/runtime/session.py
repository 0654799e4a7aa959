"""Opening onnxruntime sessions."""

from pathlib import Path

import onnxruntime as ort

from tfexport.errors import BundleError


def open_session(
    path: Path, threads: int, minimum_onnxruntime: str = "another version"
) -> ort.InferenceSession:
    """Open one graph on the CPU.

    Args:
        path: the .onnx file; its external weights are beside it.
        threads: threads inside an operator; 0 lets onnxruntime take the machine's cores.
        minimum_onnxruntime: what the file says it needs, for the message.

    Raises:
        BundleError: onnxruntime cannot load the graph.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors; its warnings are about its own optimisations
    try:
        return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's exceptions share no base but Exception
        raise BundleError(
            f"{path}: onnxruntime {ort.__version__} cannot load it; it needs "
            f"{minimum_onnxruntime} or newer, or is damaged: {error}"
        ) from error
