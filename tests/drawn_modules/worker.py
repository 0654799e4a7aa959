"""One worker process: reads seeds as lines, writes their results as lines of JSON."""

import os
import sys
from pathlib import Path

import torch

from tests.drawn_modules.case import run_case


def main(folder: Path) -> None:
    """Run cases until there are no more.

    Args:
        folder: for the sources of what is drawn.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not be taken for an answer
    torch.set_num_threads(1)
    for line in sys.stdin:
        answers.write(run_case(int(line), folder).to_json() + "\n")
        answers.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
