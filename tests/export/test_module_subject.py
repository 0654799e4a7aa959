"""What a module as a subject has that only a checkpoint had: languages of real texts."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tfexport.bundle import SpecialIds
from tfexport.errors import ConfigError
from tfexport.export import Input, export, verify
from tfexport.export.graph_options import GraphOptions
from tfexport.export.module_subject import ModuleSubject
from tfexport.export.text.families.built import ModelTokenizers
from tfexport.export.text.tokenizer_files import TokenizerFiles
from tfexport.languages import Languages
from tfexport.model_src.checkpoint.generation_config import Generation
from tfexport.runtime.text.codec import LanguagePair

LANGUAGES = Languages(ids={"de": 7, "en": 8}, source_place="before", target_place="first")


def subject(languages: Languages | None, pair: LanguagePair, **defaults: Any) -> ModuleSubject:
    nothing: Any = None
    files = ModelTokenizers(Path(), nothing, nothing, (), languages)
    return ModuleSubject(
        special_ids=SpecialIds(0, 1, 2), generation=Generation(defaults, None),
        options=GraphOptions(), probe=nothing, max_length=9, framing={},
        tokenizers=TokenizerFiles(model=files), samples="a.txt", language_pair=pair,
    )  # fmt: skip


@pytest.mark.no_model
@pytest.mark.parametrize(
    ("languages", "pair", "problem"),
    [
        (LANGUAGES, LanguagePair("fr", "en"), "'fr' is not a language of the model"),
        (LANGUAGES, LanguagePair("de", None), "the model needs a target"),
        (None, LanguagePair("de", None), "has no effect: this model has one source"),
    ],
)
def test_languages_of_samples_are_checked(
    languages: Languages | None, pair: LanguagePair, problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        subject(languages, pair).check_languages(translates=True)


@pytest.mark.no_model
def test_languages_that_fit_are_taken() -> None:
    subject(LANGUAGES, LanguagePair("de", "en")).check_languages(translates=True)
    # The target may be a default of the model's files.
    subject(LANGUAGES, LanguagePair("de", None), first_token=8).check_languages(translates=True)


class Bag(nn.Module):
    """Logits of the next token from the ids so far and the sum of the source."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(11, 8), nn.Linear(8, 11)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory = self.table(source).sum(1, keepdim=True)
        logits: Tensor = self.head(torch.tanh(self.table(target).cumsum(1) + memory))
        return logits


def test_languages_need_samples_and_a_model_that_has_them(tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "inputs": [Input("source", "int64", ("batch", "length"))], "pad_id": 0, "bos_id": 1,
        "eos_id": 2, "max_length": 8,
    }  # fmt: skip
    with pytest.raises(ConfigError, match=r"source_language.*samples"):
        export(Bag(), tmp_path / "a.bundle", source_language="de", **given)
    (tmp_path / "a.txt").write_text("3 4\n")
    with pytest.raises(ConfigError, match="has no effect: this model has one source"):
        export(
            Bag(), tmp_path / "a.bundle", source_language="de", samples=tmp_path / "a.txt", **given
        )
    with pytest.raises(ConfigError, match="target_language requires a bundle"):
        export(Bag(), tmp_path / "a.onnx", graph="generate", target_language="de", **given)
    assert [file.name for file in tmp_path.iterdir()] == ["a.txt"]
    with pytest.raises(Exception, match="no such"):
        verify(tmp_path / "a.bundle", Bag(), inputs=given["inputs"], source_language="de")
