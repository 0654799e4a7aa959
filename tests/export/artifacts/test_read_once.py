"""What an export of a folder reads, and how often it builds the model."""

import io
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.hf_models import make_model, save_folder
from tfexport.export import export
from tfexport.model_src import build_transformer
from tfexport.model_src.checkpoint.layout import Layout

LIBRARIES = f"{os.sep}site-packages{os.sep}transformers{os.sep}"


@pytest.mark.slow
def test_every_file_is_opened_once_and_the_model_is_built_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_folder(make_model("bart", 3), tmp_path / "bart")
    opened, calls = Counter[str](), Counter[str]()

    def counted(function: Any) -> Any:
        def opens(path: Any, *arguments: Any, **options: Any) -> Any:
            frame: Any = sys._getframe(1)
            while frame is not None and LIBRARIES not in frame.f_code.co_filename:
                frame = frame.f_back
            named = isinstance(path, str | os.PathLike) and "opener" not in options
            if named and frame is None and Path(path).parent == folder:
                opened[Path(path).name] += 1
            return function(path, *arguments, **options)

        return opens

    def called(name: str, function: Any) -> Any:
        def calling(*arguments: Any, **options: Any) -> Any:
            calls[name] += 1
            return function(*arguments, **options)

        return calling

    monkeypatch.setattr(os, "open", counted(os.open))  # of ``open_file``
    monkeypatch.setattr(io, "open", counted(io.open))  # of ``pathlib``
    built = called("build", build_transformer)
    monkeypatch.setattr("tfexport.model_src.checkpoint.checkpoint.build_transformer", built)
    monkeypatch.setattr(Layout, "recognises", called("recognises", Layout.recognises))
    result = export(folder, tmp_path / "bart.bundle", verify="quick", pack=False)
    assert result.report is not None
    assert "BartForConditionalGeneration" in result.report.reference
    assert opened == dict.fromkeys((file.name for file in folder.iterdir()), 1)
    assert calls["build"] == 1
    assert calls["recognises"] <= 2
