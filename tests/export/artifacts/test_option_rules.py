"""What an export writes, and which options go together."""

from pathlib import Path
from typing import Any

import pytest

from tfexport.cli.console import spell
from tfexport.errors import ConfigError, OutputExistsError
from tfexport.export.artifacts.option_rules import check_export, kind_of


@pytest.mark.parametrize(
    ("graph", "given", "message"),
    [
        (None, {"log_probs": True}, "log_probs requires graph='forward'."),
        ("forward", {"text": True}, "text requires graph='generate'."),
        (
            "forward",
            {"output_attentions": True},
            "output_attentions requires a bundle or graph='generate'.",
        ),
        (
            None,
            {"quantize": "int8", "portable": True},
            "quantize uses onnxruntime's own operators; omit portable.",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_option_that_does_not_go_with_a_graph_is_named(
    graph: str | None, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        check_export("out", graph, given)
    assert str(raised.value) == message


def test_all_contradictions_are_told_at_once_and_spelled_as_flags() -> None:
    with pytest.raises(ConfigError) as raised:
        check_export(
            "out", "generate", {"log_probs": True, "text": True, "output_attentions": True}
        )
    told = raised.value.message.spelled(spell)
    assert "--log-probs requires --graph forward." in told
    assert "omit --attention" in told


def test_options_that_are_not_given_contradict_nothing(tmp_path: Path) -> None:
    given = {"text": False, "quantize": None, "samples": None}
    check_export(tmp_path / "f.onnx", "forward", given)


def test_samples_and_tokenizers_need_a_use(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="samples requires a bundle, text or quantize"):
        check_export(tmp_path / "g.onnx", "generate", {"samples": "s.txt"})
    check_export(tmp_path / "b.bundle", None, {"samples": "s.txt", "expect": "e.tsv"})
    with pytest.raises(ConfigError, match="expect requires a bundle; omit graph"):
        check_export(tmp_path / "g.onnx", "generate", {"expect": "e.tsv"})
    of_ids = {"tokenizer": "t.json", "quantize": "int8"}
    with pytest.raises(ConfigError, match="a graph of ids contains no tokenizer"):
        check_export(tmp_path / "g.onnx", "generate", of_ids)
    check_export(tmp_path / "g.onnx", "generate", {**of_ids, "samples": "s.txt"})
    with pytest.raises(ConfigError, match="a graph of ids contains no tokenizer; omit split"):
        check_export(tmp_path / "g.onnx", "forward", {"source_split": "a"})


def test_output_is_looked_at_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a bundle is a folder"):
        check_export(tmp_path / "b.onnx", None, {})
    (tmp_path / "g.onnx").write_bytes(b"")
    with pytest.raises(OutputExistsError, match="already exists"):
        check_export(tmp_path / "g.onnx", "generate", {})


def test_languages_need_samples_and_something_that_decodes_them(tmp_path: Path) -> None:
    told = {"source_language": "de", "target_language": "en"}
    with pytest.raises(ConfigError) as raised:
        check_export(tmp_path / "b.bundle", None, told)
    message = raised.value.message.spelled(spell)
    assert "--source-language is the language of the samples; set them with --samples" in message
    assert "--target-language is the language of the samples" in message
    check_export(tmp_path / "b.bundle", None, {**told, "expect": "e.tsv"})
    of_text = {**told, "text": True, "samples": "s.txt"}
    with pytest.raises(ConfigError, match="target_language requires a bundle or quantize"):
        check_export(tmp_path / "g.onnx", "generate", of_text)


@pytest.mark.parametrize(
    ("output", "graph", "kind"),
    [
        ("a.bundle", None, "bundle"),
        ("a", None, "bundle"),
        ("a.ts", None, "torchscript"),
        ("a.pt", None, "torchscript"),
        ("a.pt2", None, "torch.export"),
        ("a.onnx", "forward", "forward"),
        ("a", "torchscript", "torchscript"),
    ],
)
def test_name_and_graph_say_what_is_written(output: str, graph: str | None, kind: str) -> None:
    assert kind_of(output, graph) == kind
