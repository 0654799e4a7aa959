"""Limits of the code: lengths, parameters, imports, words. Their rules are in tests/support/house.

Each rule has a list of places that break it still. A place that is not listed fails the test, and
so does one that is listed and breaks the rule no longer: the lists can only become shorter.
"""

import pytest

from tests.support import house
from tests.support.house import Rule, broken, import_circles, read_sources
from tests.support.paths import REPOSITORY

STILL: dict[Rule, set[str]] = {
    house.long_files: {
        "tfexport/export/artifacts/onnx_file.py",
        "tfexport/export/graphs/loops.py",
        "tfexport/graph_io.py",
        "tfexport/runtime/search/beam.py",
        "tfexport/runtime/translator.py",
    },
    house.long_functions: {
        "tfexport/cli/demo_command.py:demo",
        "tfexport/cli/onnx_command.py:onnx",
        "tfexport/cli/score_command.py:score",
        "tfexport/cli/translate_command.py:translate",
        "tfexport/export/artifacts/onnx_file.py:export_graph",
        "tfexport/export/graphs/batch_compaction.py:shrinking_body",
        "tfexport/export/graphs/sequence_scores.py:_text",
        "tfexport/export/passes/int8_argmax.py:_screen",
        "tfexport/export/quantize/bundle.py:quantize_bundle",
        "tfexport/model_src/checkpoint/read.py:examine",
        "tfexport/runtime/files/resumable.py:translate_file",
        "tfexport/runtime/resolve.py:Resolver.resolve",
        "tfexport/runtime/search/dispatch.py:_alternatives",
    },
    house.long_signatures: {
        "tfexport/cli/onnx_command.py:onnx",
        "tfexport/cli/score_command.py:score",
        "tfexport/cli/translate_command.py:_contradictions",
        "tfexport/cli/translate_command.py:translate",
        "tfexport/export/artifacts/bundle.py:export_bundle",
        "tfexport/export/artifacts/onnx_file.py:export_graph",
        "tfexport/export/artifacts/quantized.py:export_quantized_graph",
        "tfexport/export/artifacts/torch_file.py:export_torchscript",
        # torch's own signature, which it is there to have
        "tfexport/model_src/original_signatures.py:TorchTransformer.__init__",
        "tfexport/runtime/files/resumable.py:translate_file",
        "tfexport/runtime/files/resume.py:check_finished",
    },
    house.hidden_imports: {
        "tfexport/export/quantize/quality.py:read_samples",
        "tfexport/runtime/translator.py:Translator.translate_file",
    },
    house.imports_for_types_only: {
        "tfexport/runtime/files/scores.py",
        "tfexport/runtime/translator.py",
    },
    house.flags: {
        "tfexport/atomic.py:check_free",
        "tfexport/bundle.py:_check_place",
        "tfexport/export/artifacts/checkpoint_source.py:read_for_decoding",
        "tfexport/export/artifacts/onnx_file.py:read_graph_facts",
        "tfexport/export/graphs/exporter.py:choose_opset",
        "tfexport/export/text/word_list.py:find_word_problems",
        "tfexport/export/text/wrap.py:check_reproduced",
        "tfexport/model_src/checkpoint/complete.py:_half_embeddings",
        "tfexport/model_src/checkpoint/complete.py:complete_config",
        "tfexport/model_src/checkpoint/layouts/__init__.py:require_layout_name",
        "tfexport/model_src/checkpoint/overrides.py:parse_settings",
        "tfexport/model_src/checkpoint/read.py:_notes",
        "tfexport/model_src/checkpoint/read.py:examine",
        "tfexport/model_src/checkpoint/read.py:examine_checkpoint",
        "tfexport/runtime/files/journal.py:_damaged",
        "tfexport/runtime/files/resumable.py:_check_rereadable",
        "tfexport/runtime/files/resumable.py:_check_whole",
        "tfexport/runtime/files/resumable.py:_skip",
        "tfexport/runtime/files/resumable.py:check_output",
        "tfexport/runtime/files/resume.py:_is_not_ours",
        "tfexport/runtime/files/resume.py:check_finished",
        "tfexport/runtime/files/resume.py:read_bad_lines",
        "tfexport/runtime/text/codec.py:Texts.source",
    },
    house.riddles: {
        "tfexport/bundle.py:FileEntry",
        "tfexport/bundle.py:Manifest",
        "tfexport/cli/checkpoint_report.py",
        "tfexport/cli/console.py",
        "tfexport/cli/file_kinds.py",
        "tfexport/cli/translate_command.py:_contradictions",
        "tfexport/cli/tuning.py",
        "tfexport/errors.py",
        "tfexport/export/artifacts/__init__.py",
        "tfexport/export/artifacts/bundle.py:ExportResult",
        "tfexport/export/artifacts/checkpoint_source.py",
        "tfexport/export/artifacts/onnx_file.py:GraphResult",
        "tfexport/export/artifacts/onnx_file.py:read_graph_facts",
        "tfexport/export/artifacts/torch_file.py:TorchResult",
        "tfexport/export/artifacts/torch_file.py:read_torch_facts",
        "tfexport/export/artifacts/torch_programs.py",
        "tfexport/export/artifacts/verify.py:describe_file",
        "tfexport/export/graphs/batch_compaction.py:_after",
        "tfexport/export/graphs/beam.py:beam_attention",
        "tfexport/export/graphs/encoder_decoder.py:SearchStart",
        "tfexport/export/graphs/exporter.py:_roles",
        "tfexport/export/graphs/fused_attention.py:attention_class",
        "tfexport/export/ir_tools/roles.py",
        "tfexport/export/ir_tools/roles.py:Role",
        "tfexport/export/parity/eager_run.py",
        "tfexport/export/parity/report.py",
        "tfexport/export/parity/report.py:ParityReport.summary",
        "tfexport/export/quantize/bundle.py:QuantizeResult",
        "tfexport/export/quantize/graphs.py:_remove_unused_weights",
        "tfexport/export/quantize/quality.py",
        "tfexport/export/reference/formulas.py",
        "tfexport/graph_io.py",
        "tfexport/graph_io.py:beam_start",
        "tfexport/graph_io.py:loop_start",
        "tfexport/graph_io.py:loop_values",
        "tfexport/manifest_checks.py:_said_twice",
        "tfexport/model_src/attention.py:Attention.project_key_value",
        "tfexport/model_src/checkpoint/archive.py:Contents",
        "tfexport/model_src/checkpoint/claims.py",
        "tfexport/model_src/checkpoint/claims.py:Found",
        "tfexport/model_src/checkpoint/keymap.py:Conversion",
        "tfexport/model_src/checkpoint/overrides.py",
        "tfexport/model_src/checkpoint/shapes.py",
        "tfexport/model_src/checkpoint/wrappers.py",
        "tfexport/model_src/checkpoint/wrappers.py:StateDict",
        "tfexport/model_src/config.py:unknown_keys",
        "tfexport/model_src/layer.py:Residual.enter",
        "tfexport/runtime/benchmark.py:Timing",
        "tfexport/runtime/files/journal.py",
        "tfexport/runtime/files/line_format.py:LineResult",
        "tfexport/runtime/files/line_format.py:find_bad_lines",
        "tfexport/runtime/files/resumable.py:FileSummary",
        "tfexport/runtime/model/bundle_model.py:BeamRecord",
        "tfexport/runtime/model/bundle_model.py:Generated",
        "tfexport/runtime/model/bundle_model.py:Model._source",
        "tfexport/runtime/results.py",
        "tfexport/runtime/results.py:TranslationResult",
        "tfexport/runtime/search/beam.py:_Candidates",
        "tfexport/runtime/search/beam.py:_Chosen",
        "tfexport/runtime/search/logit_filters.py",
        "tfexport/runtime/search/one_call.py:_Replay.hypotheses",
        "tfexport/runtime/search/plain.py:greedy_in_one_call",
        "tfexport/runtime/search/prefill.py:all_candidates",
        "tfexport/runtime/search/ranking.py",
        "tfexport/runtime/search/resolved_options.py",
        "tfexport/runtime/search/stepwise.py:_Path",
        "tfexport/runtime/text/codec.py:check_rows",
        "tfexport/runtime/text/streaming.py:TextStream.end",
        "tfexport/runtime/text/tokenizer.py:Tokenizer",
        "tfexport/runtime/text/vocabulary_map.py:_pieces",
        "tfexport/runtime/translator.py:Job.request",
        "tfexport/runtime/translator.py:Translator.resolver",
        "tfexport/runtime/translator.py:Translator.scorer",
        "tfexport/runtime/translator.py:_in_order",
    },
    house.modules_without_docstring: set(),
}
CIRCLES: list[set[str]] = [
    {
        "tfexport.runtime.files.line_format",
        "tfexport.runtime.files.resumable",
        "tfexport.runtime.files.resume",
        "tfexport.runtime.files.scores",
        "tfexport.runtime.translator",
    },
]
LONG_TESTS = {
    "tests/export/artifacts/test_bundle.py",
    "tests/export/artifacts/test_originals.py",
    "tests/export/artifacts/test_torch_file.py",
    "tests/export/graphs/test_generate.py",
    "tests/model_src/checkpoint/test_hostile.py",
    "tests/model_src/checkpoint/test_read.py",
    "tests/model_src/test_originals.py",
    "tests/runtime/files/test_resumable.py",
    "tests/runtime/search/test_decoding.py",
    "tests/runtime/test_features.py",
}


@pytest.mark.parametrize("rule", STILL, ids=lambda rule: rule.__name__)
def test_the_limit_is_kept(rule: Rule) -> None:
    compare(broken(rule, read_sources(REPOSITORY)), STILL[rule])


@pytest.mark.parametrize("folder", ["tests", "benchmarks"])
def test_files_beside_the_package_are_no_longer_than_those_in_it(folder: str) -> None:
    listed = {path for path in LONG_TESTS if path.startswith(f"{folder}/")}
    compare(broken(house.long_files, read_sources(REPOSITORY, folder)), listed)


def compare(found: set[str], listed: set[str]) -> None:
    assert sorted(found - listed) == [], "to be mended"
    assert sorted(listed - found) == [], "mended: to be taken off the list"


def test_no_modules_import_each_other() -> None:
    assert import_circles(read_sources(REPOSITORY)) == CIRCLES


def test_every_folder_with_modules_is_a_package() -> None:
    for path in (REPOSITORY / "tfexport").rglob("*.py"):
        assert path.with_name("__init__.py").exists(), path
