"""Methods of a user's module with a fault each, and what their refusal has to say."""

from dataclasses import dataclass

from tests.support.user_files import (
    DECODE,
    ENCODE,
    RECOMPUTING,
    START,
    STEP,
    WITH_STATE,
    Methods,
)


@dataclass(frozen=True)
class Fault:
    """A method with a fault.

    Attributes:
        name: of the fault.
        source: of the method; the line that has to be named ends with ``# here``, else it is the
            first.
        said: words of the message.
    """

    name: str
    source: str
    said: tuple[str, ...] = ()

    @property
    def method(self) -> str:
        return self.source.partition("def ")[2].partition("(")[0]

    @property
    def methods(self) -> Methods:
        base = RECOMPUTING if self.method == "decode" else WITH_STATE
        return {**base, self.method: self.source}


def changed(source: str, old: str, new: str) -> str:
    assert source.count(old) == 1
    return source.replace(old, new)


BRANCH = """
    if x.sum() > 0:  # here
        x = x * 2
"""
X_OF_STEP = "    x = self.embedding(token)\n"
X_OF_DECODE = "    x = self.embedding(tokens).cumsum(1)\n"
STATE = "(hidden, inputs)\n"
LOGITS = "self.output(hidden + inputs.mean(1))"

FAULTS = [
    Fault(
        "a branch on values, in step",
        changed(STEP, X_OF_STEP, X_OF_STEP + BRANCH),
        ("data-dependent", "torch.where"),
    ),
    Fault(
        "a branch on values, in decode",
        changed(DECODE, X_OF_DECODE, X_OF_DECODE + BRANCH),
        ("data-dependent", "torch.where"),
    ),
    Fault(
        "a branch on values, in encode",
        changed(ENCODE, "    return", "    x = frames\n" + BRANCH + "    return"),
        ("data-dependent", "torch.where"),
    ),
    Fault(
        "a branch on the position",
        changed(STEP, X_OF_STEP, X_OF_STEP + "    if position == 0:  # here\n        x = x * 2\n"),
        ("data-dependent", "torch.where"),
    ),
    Fault(
        "a branch on a number of Python",
        changed(
            ENCODE,
            "):\n",
            "):\n    if frames.max().item() > 9:  # here\n        frames = frames / 9\n",
        ),
        ("data-dependent", "torch.where"),
    ),
    Fault(
        "values that leave torch",
        changed(ENCODE, "):\n", "):\n    frames = torch.from_numpy(frames.numpy() * 2)  # here\n"),
    ),
    Fault(
        "a length from values",
        changed(ENCODE, "frames):\n", "frames):\n    frames = frames[:, frames.sum((0, 2)) > 0]\n"),
    ),
    Fault(
        "a batch of a fixed size, in encode",
        changed(ENCODE, "):\n", "):\n    frames = frames.view(2, -1, 6)  # here\n"),
    ),
    Fault(
        "a batch of a fixed size, in start",
        changed(START, "memory.mean(1)", "torch.zeros(1, 8)"),
    ),
    Fault(
        "a length of a fixed size",
        changed(
            ENCODE,
            "    return torch.tanh(self.project(frames))",
            "    return torch.tanh(self.project(frames) + self.places)  # here",
        ),
        ("time",),
    ),
    Fault(
        "a loop over a length",
        """
def encode(self, frames):
    x = self.project(frames)
    total = torch.zeros_like(x[:, 0])
    outputs = []
    for time in range(frames.size(1)):  # here
        total = torch.tanh(total + x[:, time])
        outputs.append(total)
    return torch.stack(outputs, 1)
""",
        ("time",),
    ),
    Fault(
        "a state that is changed in place",
        changed(STEP, "hidden, inputs = state\n", "hidden, inputs = state\n    hidden.add_(1)\n"),
        ("in place",),
    ),
    Fault(
        "a memory that is changed in place",
        changed(STEP, "= state\n", "= state\n    memory[0].mul_(0.5)\n"),
        ("in place",),
    ),
    Fault(
        "an input that is changed in place",
        changed(ENCODE, "frames):\n", "frames):\n    frames /= 2\n"),
        ("in place",),
    ),
    Fault(
        "something kept between calls",
        changed(
            STEP,
            "hidden, inputs = state\n",
            "hidden, inputs = state\n    self.calls += 1\n    hidden = hidden + self.calls\n",
        ),
    ),
    Fault(
        "random numbers",
        changed(DECODE, X_OF_DECODE, X_OF_DECODE + "    x = x + torch.rand(8)\n"),
        ("random",),
    ),
    Fault(
        "a state that changes its type",
        changed(STEP, STATE, "(hidden.double(), inputs)\n"),
        ("float32", "float64"),
    ),
    Fault(
        "a state that changes its rank",
        changed(STEP, STATE, "(hidden[:, None], inputs)\n"),
    ),
    Fault(
        "a state that grows ever faster",
        changed(STEP, "[inputs, x], 1)", "[inputs, inputs, x], 1)"),
        ("grow",),
    ),
    Fault(
        "a state that shrinks",
        changed(STEP, STATE, "(hidden[:, :-1], inputs)\n").replace(
            "hidden, inputs = state",
            "hidden, inputs = state\n    hidden = torch.cat([hidden, hidden], 1)[:, :8]",
        ),
    ),
    Fault(
        "a state that gains a tensor",
        changed(STEP, STATE, "(hidden, inputs, hidden)\n"),
        ("2", "3"),
    ),
    Fault("a state that loses a tensor", changed(STEP, STATE, "(hidden,)\n"), ("2", "1")),
    Fault("a state that is none", changed(STEP, STATE, "None\n"), ("None",)),
    Fault(
        "no state beside the logits",
        changed(STEP, f"{LOGITS}, {STATE}", f"{LOGITS}\n"),
        ("(logits, state)",),
    ),
    Fault(
        "logits of a rank too many, in step",
        changed(STEP, LOGITS, f"{LOGITS}[:, None]"),
        ("logits", "(B, V)"),
    ),
    Fault(
        "logits of a rank too few, in decode",
        changed(DECODE, "keepdim=True)))", "keepdim=True)))[:, -1]"),
        ("logits", "(B, T, V)"),
    ),
    Fault(
        "logits of the wrong batch",
        changed(STEP, LOGITS, f"{LOGITS}[:1]"),
        ("logits",),
    ),
    Fault(
        "logits of the wrong length",
        changed(DECODE, "keepdim=True)))", "keepdim=True)))[:, 1:]"),
        ("logits",),
    ),
    Fault(
        "a vocabulary that varies",
        changed(STEP, LOGITS, f"{LOGITS}[:, : 6 + inputs.size(1)]"),
        ("logits",),
    ),
    Fault(
        "a vocabulary that varies with the source",
        changed(STEP, LOGITS, f"{LOGITS}[:, : 6 + memory[0].size(1)]"),
        ("logits",),
    ),
    Fault(
        "logits that are integers", changed(STEP, LOGITS, f"{LOGITS}.long()"), ("logits", "int64")
    ),
    Fault("logits that are no tensor", changed(STEP, LOGITS, "None"), ("logits", "None")),
    Fault("logits that are NaN", changed(STEP, LOGITS, f"({LOGITS} * float('nan'))"), ("NaN",)),
    Fault(
        "logits that are NaN after a while",
        changed(STEP, LOGITS, f"({LOGITS} + (0.0 if inputs.size(1) < 4 else float('nan')))"),
        ("NaN",),
    ),
    Fault("a memory that is none", changed(ENCODE, "return", "self.memory ="), ("None",)),
    Fault(
        "a memory that is a dict",
        changed(ENCODE, "return torch.tanh(self.project(frames))", "return {'memory': frames}"),
        ("dict",),
    ),
    Fault(
        "a memory that holds a list",
        changed(ENCODE, "return torch.tanh(self.project(frames))", "return frames, [frames]"),
        ("list",),
    ),
    Fault(
        "a memory that holds a number",
        changed(ENCODE, "torch.tanh(self.project(frames))", "frames, frames.size(1)"),
        ("int",),
    ),
    Fault(
        "an error of its own",
        changed(ENCODE, "self.project(frames)", "self.projekt(frames)  # here\n    "),
        ("AttributeError", "projekt"),
    ),
]
