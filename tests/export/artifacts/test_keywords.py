"""Keywords of the public functions: unknown ones are refused."""

from pathlib import Path
from typing import Any

import pytest

from tfexport.errors import ConfigError
from tfexport.export import export, verify
from tfexport.export.artifacts.keywords import graph_options, read_options, tokenizer_files


@pytest.mark.parametrize("function", [export, verify], ids=lambda function: function.__name__)
def test_unknown_keyword_is_refused_by_name_with_the_one_that_was_meant(
    function: Any, tmp_path: Path
) -> None:
    name = function.__name__
    with pytest.raises(TypeError, match=rf"{name}\(\) got .*'setings'; did you mean 's"):
        function("nothing.pt", tmp_path / "out", setings=["pad_id=0"])
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'speed'$"):
        function("nothing.pt", tmp_path / "out", speed=3)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "given", "problems"),
    [
        ("m.ts", {"quantize": "int8", "portable": True, "reads": "texts"},
         ["quantize requires", "portable requires", "reads requires", "omit portable"]),
        ("m.pt2", {"log_probs": True, "tokenizer": "t.json", "samples": "s.txt"},
         ["log_probs requires", "tokenizer requires", "samples requires"]),
        ("m.bundle", {"examples": [{}], "add_source_eos": True, "log_probs": True},
         ["examples applies to custom modules", "add_source_eos applies to custom modules",
          "log_probs requires"]),
        ("m.bundle", {"pad_id": 0, "bos_id": 1, "log_probs": True},
         ["inputs, or example, is required", "eos_id is required", "max_length is required",
          "log_probs applies to checkpoints"]),
        ("m.onnx", {}, ["m.onnx: a bundle is a folder"]),
        ("m", {"graph": "backward"}, ["graph: 'backward' is not one of", "'torchscript'"]),
    ],
    ids=["torchscript", "torch.export", "module's options", "checkpoint's", "suffix", "graph"],
)  # fmt: skip
def test_all_options_that_do_not_go_with_the_output_are_named(
    tmp_path: Path, name: str, given: dict[str, Any], problems: list[str]
) -> None:
    with pytest.raises(ConfigError) as raised:
        export("nothing.pt", tmp_path / name, **given)
    assert all(each in str(raised.value) for each in problems), str(raised.value)


def test_arguments_of_a_module_and_of_a_checkpoint_are_not_mixed() -> None:
    with pytest.raises(ConfigError, match="examples applies to custom modules"):
        verify("a.bundle", "nothing.pt", examples=[{}])
    with pytest.raises(ConfigError) as raised:
        verify("a.bundle", "nothing.pt", inputs=[], layout="native", settings=["a=1"])
    assert "layout applies to checkpoints" in str(raised.value)
    assert "settings applies to checkpoints" in str(raised.value)
    assert "model: 'nothing.pt' is not a torch.nn.Module" in str(raised.value)
    given: dict[str, Any] = {"inputs": [], "bos_id": 1, "eos_id": 2, "max_length": 0}
    with pytest.raises(ConfigError) as raised:
        export("nothing.pt", "a.bundle", pad_id=-1, **given)
    for problem in ("model: 'nothing.pt' is not a torch.nn.Module", "pad_id: -1", "max_length: 0"):
        assert problem in str(raised.value)


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
