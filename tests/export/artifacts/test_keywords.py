"""Keywords of the public functions: unknown ones are refused."""

from pathlib import Path
from typing import Any

import pytest

from tfexport.export import (
    export_bundle,
    export_graph,
    export_quantized_bundle,
    export_quantized_graph,
    export_torchscript,
    verify_artifact,
)
from tfexport.export.artifacts.keywords import graph_options, read_options, tokenizer_files

EXPORTS = [export_bundle, export_graph, export_torchscript, verify_artifact]


@pytest.mark.parametrize("export", EXPORTS, ids=lambda export: export.__name__)
def test_unknown_keyword_is_refused_by_name_with_the_one_that_was_meant(
    export: Any, tmp_path: Path
) -> None:
    with pytest.raises(TypeError, match=rf"{export.__name__}\(\) got .*'setings'; did you mean 's"):
        export("nothing.pt", tmp_path / "out", setings=["pad_id=0"])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("export", [export_quantized_bundle, export_quantized_graph])
def test_unknown_keyword_of_a_quantised_export_is_refused(export: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'speed'$"):
        export("nothing.pt", tmp_path / "out", "int8", speed=3)


def test_keywords_become_values() -> None:
    read = read_options({"config": {"pad_id": 0}, "settings": ["num_heads=2"], "layout": "native"})
    assert (read.config, list(read.settings), read.layout) == (
        {"pad_id": 0},
        ["num_heads=2"],
        "native",
    )
    options = graph_options({"portable": True, "output_attentions": True})
    assert (options.opset, options.portable, options.output_attentions) == (20, True, True)
    files = tokenizer_files({"source_tokenizer": "a.json", "target_tokenizer": "b.json"}, None)
    assert files.paths == (Path("a.json"), Path("b.json"))
