"""The model that ships: every file gives eager PyTorch's tokens on its test set."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import sacrebleu
import torch
from torch import Tensor

from tests.support.combinations import few_of
from tests.system.demo.conftest import LIMIT
from tfexport.runtime import Translator
from tfexport.runtime.model.onnxruntime_model import pad

pytestmark = pytest.mark.slow
BATCH = 32
Tokens = list[list[int]]


def test_bundle_decodes_token_by_token_as_eager_pytorch(
    bundle: Path,
    all_pairs: list[list[str]],
    pairs: list[list[str]],
    rows: Tokens,
    expected: Tokens,
    texts: list[str],
) -> None:
    translator = Translator(bundle)
    assert [translator.encode(pair[0]) for pair in pairs] == rows
    results = translator.translate([pair[0] for pair in pairs], max_length=LIMIT)
    assert [result.hypotheses[0].tokens for result in results] == expected
    assert [result.text for result in results] == texts
    results = translator.translate([pair[0] for pair in all_pairs], max_length=LIMIT)
    bleu = sacrebleu.corpus_bleu([str(r.text) for r in results], [[pair[1] for pair in all_pairs]])
    assert bleu.score == pytest.approx(54.0, abs=0.1)


def in_batches(
    rows: Tokens, call: Callable[[np.ndarray[Any, Any], np.ndarray[Any, Any]], Any]
) -> Tokens:
    """All rows through a call of ids and mask, each up to its end token."""
    found = []
    for start in range(0, len(rows), BATCH):
        for row in call(*pad(rows[start : start + BATCH], pad_id=1)).tolist():
            end = row.index(3) if 3 in row else len(row)
            assert set(row[end + 1 :]) <= {1}
            found.append(row[:end])
    return found


@pytest.mark.parametrize("form", few_of(["generate", "portable"], "generate"))
def test_one_call_of_onnxruntime_gives_eagers_tokens(
    form: str, request: pytest.FixtureRequest, rows: Tokens, expected: Tokens
) -> None:
    session = ort.InferenceSession(request.getfixturevalue(form))

    def call(ids: Any, mask: Any) -> Any:
        feeds = {"input_ids": ids, "attention_mask": mask, "max_length": np.array(LIMIT)}
        return session.run(["sequences"], feeds)[0]

    assert in_batches(rows, call) == expected


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("form", few_of(["torchscript", "program"], "torchscript"))
def test_one_call_of_torch_gives_eagers_tokens(
    form: str, request: pytest.FixtureRequest, rows: Tokens, expected: Tokens
) -> None:
    path = request.getfixturevalue(form)
    run = (
        torch.jit.load(path).generate if form == "torchscript" else torch.export.load(path).module()
    )

    def call(ids: Any, mask: Any) -> Tensor:
        with torch.no_grad():
            sequences: Tensor = run(torch.from_numpy(ids), torch.from_numpy(mask), LIMIT)
        return sequences

    assert in_batches(rows, call) == expected


@pytest.mark.parametrize(
    "form",
    few_of(["generate", "portable", "torchscript", "program"], "generate", "torchscript"),
)
def test_file_is_hardly_larger_than_its_weights(
    form: str, request: pytest.FixtureRequest, bundle: Path
) -> None:
    weights = 4 * (8_570_000 + 512 * 256)  # parameters, and the position table
    assert request.getfixturevalue(form).stat().st_size < 1.05 * weights + 256 * 1024
    assert sum(f.stat().st_size for f in bundle.iterdir()) < 1.05 * weights + 256 * 1024
