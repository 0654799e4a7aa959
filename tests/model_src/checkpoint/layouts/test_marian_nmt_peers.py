"""Model files of Marian-NMT compared with CTranslate2, which reads and computes them on its own."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.toolkits import marian_nmt
from tfexport.export.reference.original import ModuleReference
from tfexport.model_src import load_checkpoint

pytestmark = pytest.mark.peers
SOURCES, TARGETS = [[5, 9, 3, 7], [4]], [[6, 2, 8], [3, 3, 5, 9]]


def with_positions(path: Path) -> Path:
    """The file with Marian's own positions as trained ones: CTranslate2 would compute others."""
    with np.load(path) as archive:
        arrays = dict(archive)
    half = next(it.shape[1] for name, it in arrays.items() if name.endswith("Wemb")) // 2
    angle = np.arange(64)[:, None] * np.exp(np.arange(half) * -(math.log(10000) / (half - 1)))
    arrays["Wpos"] = np.concatenate([np.sin(angle), np.cos(angle)], 1).astype(np.float32)
    np.savez(path.with_name("positions.npz"), **arrays)
    return path.with_name("positions.npz")


@pytest.mark.parametrize("seed", range(6))
def test_words_have_the_log_probabilities_of_ctranslate2(tmp_path: Path, seed: int) -> None:
    ctranslate2 = pytest.importorskip("ctranslate2")
    converters = pytest.importorskip("ctranslate2.converters")
    case = marian_nmt.write(seed, tmp_path, transformer_postprocess_emb="n" if seed % 2 else "d")
    vocabularies = []
    for side, size in zip(("source", "target"), case.vocab, strict=True):
        lines = ["</s>: 0", "<unk>: 1", *(f"w{i}: {i}" for i in range(2, size))]
        vocabularies.append(str(tmp_path / f"{side}.yml"))
        Path(vocabularies[-1]).write_text("\n".join(lines) + "\n")
    file = str(with_positions(case.path))
    converters.MarianConverter(file, vocabularies).convert(str(tmp_path / "converted"))
    peer = ctranslate2.Translator(
        str(tmp_path / "converted"), compute_type="float32", intra_threads=1
    )
    words = [[[f"w{i}" for i in row] for row in rows] for rows in (SOURCES, TARGETS)]
    run = ModuleReference(load_checkpoint(case.path).build(), "")
    start = case.vocab[1]
    for source, target, theirs in zip(SOURCES, TARGETS, peer.score_batch(*words), strict=True):
        ids = torch.tensor([[*source, 0]])
        mask = torch.ones_like(ids)
        logits = run.decode(run.encode(ids, mask), mask, torch.tensor([[start, *target]]))
        ours = logits.log_softmax(-1)[0, range(len(target) + 1), [*target, 0]]
        torch.testing.assert_close(ours, torch.tensor(theirs.log_probs), atol=1e-4, rtol=1e-4)
