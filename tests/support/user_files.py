"""A user's file with a small module of the contract, of which single methods are replaced."""

import importlib.util
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

HERE = "# here"
HEAD = '''"""A module as a user writes it."""

import torch
from torch import nn


class Captioner(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(6, 8)
        self.embedding = nn.Embedding(12, 8)
        self.output = nn.Linear(8, 12)
        self.places = nn.Parameter(torch.randn(7, 8))
        self.register_buffer("calls", torch.zeros(8))
'''
ENCODE = """
def encode(self, frames):
    return torch.tanh(self.project(frames))
"""
START = """
def start(self, memory):
    return memory.mean(1), memory[:, :0]
"""
STEP = """
def step(self, token, position, state, memory):
    hidden, inputs = state
    x = self.embedding(token)
    inputs = torch.cat([inputs, x], 1)
    hidden = torch.tanh(hidden + x[:, 0] + memory[0].mean(1))
    return self.output(hidden + inputs.mean(1)), (hidden, inputs)
"""
DECODE = """
def decode(self, tokens, memory):
    x = self.embedding(tokens).cumsum(1)
    return self.output(torch.tanh(x + memory.mean(1, keepdim=True)))
"""
Methods = Mapping[str, str | None]
WITH_STATE: Methods = {"encode": ENCODE, "start": START, "step": STEP}
RECOMPUTING: Methods = {"encode": ENCODE, "decode": DECODE}


class UserFile:
    """``captioner.py`` in a folder.

    Args:
        folder: where it is written.
        methods: of the class ``Captioner``, each its source; None for one that is left out.
    """

    def __init__(self, folder: Path, methods: Methods) -> None:
        written = [textwrap.indent(text, "    ") for text in methods.values() if text]
        self.text = "".join([HEAD, *written])
        self.path = folder / "captioner.py"
        self.path.write_text(self.text, encoding="utf-8")

    def line(self, method: str) -> int:
        """The line with the comment ``# here``; else the one that defines a method."""
        wanted = HERE if HERE in self.text else f"def {method}("
        (number,) = (i for i, line in enumerate(self.text.splitlines(), 1) if wanted in line)
        return number

    def build(self) -> Any:
        """The module, with random weights."""
        spec = importlib.util.spec_from_file_location("captioner", self.path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        torch.manual_seed(0)
        return module.Captioner().eval()
