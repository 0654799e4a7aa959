"""The names of the engines."""

from typing import Literal

EngineName = Literal["auto", "onnxruntime", "native"]
ENGINES: tuple[EngineName, ...] = ("auto", "onnxruntime", "native")
