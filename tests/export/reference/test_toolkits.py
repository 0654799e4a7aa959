"""Checkpoints of toolkits from their files to proven bundles that decode."""

import os
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.toolkits import fairseq, joeynmt, marian_nmt, opennmt_py, sockeye
from tfexport.export import export
from tfexport.runtime import Translator

TOOLKITS: dict[str, ModuleType] = {
    "marian-nmt": marian_nmt, "fairseq": fairseq, "opennmt-py": opennmt_py, "joeynmt": joeynmt,
    "sockeye": sockeye,
}  # fmt: skip
CASES = [(name, seed) for seed in range(4) for name in TOOLKITS]
WANTED = CASES if os.environ.get("FAMILIES") == "all" else CASES[:1]


@pytest.mark.exhaustive  # what test_family does with a toy, and tests of layouts with their weights
@pytest.mark.slow
@pytest.mark.usefixtures("few_shapes")
@pytest.mark.parametrize(("name", "seed"), WANTED)
def test_checkpoint_becomes_a_bundle_that_says_the_same(
    tmp_path: Path, name: str, seed: int
) -> None:
    case = TOOLKITS[name].write(seed, tmp_path)
    export(case.path, tmp_path / "x.bundle")
    translator = Translator(tmp_path / "x.bundle")
    for size in (1, 3):
        for found in translator.generate([[5, 6, 7], [8]], beam_size=size, max_length=8):
            tokens = found.hypotheses[0].tokens
            assert all(token < case.vocab[1] for token in tokens), "an id that stands for no word"
