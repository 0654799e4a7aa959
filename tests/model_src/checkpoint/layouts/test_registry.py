"""The registry: what every layout brings, who names them all, and one more through it alone."""

import ast
import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import torch

from tests.support.hf_models import FAMILIES, OF_FOLDERS
from tests.support.paths import REPOSITORY
from tests.support.toy_family import CONFIG, TOY, TOY_CONFIG, save_toy
from tfexport.cli.console import checkpoint_options
from tfexport.errors import CheckpointError, ConfigError
from tfexport.export.text.model_tokenizers import FINDERS
from tfexport.layout_names import LAYOUT_NAMES
from tfexport.model_src import (
    Layout,
    build_transformer,
    load_checkpoint,
    register_layout,
)
from tfexport.model_src.checkpoint.layouts import LAYOUTS
from tfexport.model_src.checkpoint.read import examine_checkpoint, expected_shapes
from tfexport.model_src.checkpoint.unsupported import UNSUPPORTED
from tfexport.model_src.config import config_keys


@pytest.fixture
def toy() -> Iterator[Layout]:
    register_layout(TOY)
    yield TOY
    del LAYOUTS["toy"]


def test_layout_is_added_through_the_registry_alone(toy: Layout, tmp_path: Path) -> None:
    model = build_transformer(CONFIG).eval()
    state = save_toy(model, tmp_path)
    found = load_checkpoint(tmp_path)
    assert found.layout == "toy"
    assert set(found.key_report) == set(state)
    assert found.origins["num_heads"] == "config.json"
    config = dataclasses.replace(found.config, dropout=CONFIG.dropout)
    assert config == CONFIG
    source, target = torch.randint(1, 9, (2, 5)), torch.randint(1, 11, (2, 4))
    masks = torch.ones_like(source), torch.ones_like(target)
    expected = model(source, masks[0], target, masks[1])
    torch.testing.assert_close(found.build()(source, masks[0], target, masks[1]), expected)


def test_caller_wins_over_the_config_that_a_layout_reads(toy: Layout, tmp_path: Path) -> None:
    save_toy(build_transformer(CONFIG), tmp_path)
    (tmp_path / "other.json").write_text(json.dumps({**TOY_CONFIG, "heads": 4}))
    found = load_checkpoint(tmp_path, tmp_path / "other.json", ["pad_id=3"], layout="toy")
    assert (found.config.num_heads, found.config.pad_id) == (4, 3)
    assert found.origins["num_heads"] == "other.json"


def test_messages_name_the_keys_and_shapes_of_an_added_layout(toy: Layout, tmp_path: Path) -> None:
    state = save_toy(build_transformer(CONFIG), tmp_path)
    del state["encoder/1/self/norm/g"], state["decoder/0/ffn/2/w"]
    state["encoder/1/ffn/1/w"] = torch.zeros(8, 13)
    torch.save(state, tmp_path / "model.pt")
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(tmp_path)
    for part in (
        "encoder/1/ffn/1/w has shape [8, 13], expected [8, 12]",
        "encoder/1/self/norm/g [8] is missing",
        "decoder/0/ffn/2/w [12, 8] is missing",
        "Read as the toy family (layout='toy').",
    ):
        assert part in str(caught.value)


def test_unknown_keys_of_a_config_that_a_layout_reads_are_named(
    toy: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_toy(build_transformer(CONFIG), tmp_path)
    wrong = dataclasses.replace(TOY, read_config=lambda values: {"num_heds": 2})
    with monkeypatch.context() as patch:  # undone before the fixture takes the layout away
        patch.setitem(LAYOUTS, "toy", wrong)
        with pytest.raises(ConfigError, match=r"config\.json: unknown key 'num_heds'; did you"):
            load_checkpoint(tmp_path)


def test_model_type_decides_between_layouts_that_know_the_same_keys(
    toy: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = dataclasses.replace(TOY, name="toy-2", title="its successor", model_types=("toy-2",))
    save_toy(build_transformer(CONFIG), tmp_path)
    with monkeypatch.context() as patch:  # undone before the fixture takes the layout away
        patch.setitem(LAYOUTS, "toy-2", later)
        assert load_checkpoint(tmp_path).layout == "toy"
        (tmp_path / "config.json").write_text(json.dumps({**TOY_CONFIG, "model_type": "toy-2"}))
        patch.setitem(LAYOUTS, "toy", dataclasses.replace(TOY, model_types=("toy",)))
        assert load_checkpoint(tmp_path).layout == "toy-2"


def test_config_of_an_added_layout_beside_another_layout_is_skipped(
    toy: Layout, tmp_path: Path
) -> None:
    torch.save(build_transformer(CONFIG).state_dict(), tmp_path / "model.pt")
    (tmp_path / "config.json").write_text(json.dumps(TOY_CONFIG))
    found = examine_checkpoint(tmp_path, CONFIG.to_dict(), layout="native")
    found.require_usable()
    assert ["config.json next to it is" in str(note) for note in found.notes] == [True]


def test_layout_is_found_before_a_config_is_judged(tmp_path: Path) -> None:
    torch.save({"mixer.weight": torch.zeros(2)}, tmp_path / "model.pt")
    (tmp_path / "config.json").write_text(json.dumps({"num_heds": 4}))
    with pytest.raises(CheckpointError, match="no known layout"):
        load_checkpoint(tmp_path)


def test_name_of_another_layout_is_refused() -> None:
    register_layout(LAYOUTS["annotated"])  # the same one again does no harm
    with pytest.raises(ConfigError, match="'annotated' already: The Annotated Transformer"):
        register_layout(dataclasses.replace(TOY, name="annotated"))
    assert LAYOUTS["annotated"].title == "The Annotated Transformer"


@pytest.mark.parametrize("name", LAYOUTS)
def test_layout_brings_all_that_it_needs(name: str) -> None:
    layout = LAYOUTS[name]
    assert layout.name == name
    assert layout.title
    assert layout.table.rules
    assert {*layout.defaults, *layout.required} <= set(config_keys())
    assert bool(layout.defaults) == (name != "native"), "a native file brings its whole config"
    read = layout.read_config({"num_heads": 4} if not layout.model_types else {"model_type": name})
    assert set(read) <= set(config_keys())


@pytest.mark.parametrize("name", LAYOUTS)
def test_table_makes_every_weight_of_a_model_from_one_key(name: str) -> None:
    layout = LAYOUTS[name]
    shared = layout.defaults.get("share_encoder_layers", False)
    bias = layout.defaults.get("norm") != "rms"
    config = dataclasses.replace(
        CONFIG, share_encoder_layers=shared, share_decoder_layers=shared, feed_forward_bias=bias,
        attention_bias=layout.defaults.get("attention_bias", bias), encoder_final_norm=bias,
        decoder_final_norm=bias, output_bias=layout.defaults.get("output_bias", True),
        norm="layer" if bias else "rms",
    )  # fmt: skip
    for weight, shape in expected_shapes(config).items():
        if weight.endswith("positions.table"):
            continue
        key, original = layout.table.origin_of(weight, shape, config.num_heads)
        found = layout.table.map_keys([key.replace("*", "0")])
        assert len(found) == 1, (weight, key)
        ((rule, values),) = found.values()
        assert weight in [target.format(**values) for target in rule.targets]
        pieces = rule.convert(torch.zeros(original))
        rows = config.num_heads if "*" in key else 1
        assert {(rows * piece.shape[0], *piece.shape[1:]) for piece in pieces} == {shape}


def test_families_of_hugging_face_have_a_class_to_be_compared_with_and_a_tokenizer() -> None:
    pytest.importorskip("transformers")
    of_library = [kind for kind, it in OF_FOLDERS.items() if "of Hugging Face" in it.title]
    assert of_library == FAMILIES, "tests/system/peers compare each with transformers"
    assert {layout.tokenizer_class for layout in OF_FOLDERS.values()} <= {"", *FINDERS}


def test_no_layout_reads_what_is_refused_by_its_name() -> None:
    kinds = {kind for layout in LAYOUTS.values() for kind in layout.model_types}
    assert sorted(kinds & set(UNSUPPORTED)) == [], "unsupported.json has them"


def test_command_line_and_docs_name_every_layout() -> None:
    @checkpoint_options
    @click.command()
    def command() -> None:
        """Any that reads a checkpoint."""

    (layout,) = (option for option in command.params if option.name == "layout")
    assert isinstance(layout, click.Option)
    names = (layout.help or "").partition(": ")[2].rstrip(".")
    assert re.split(", | or ", names) == sorted(LAYOUTS)
    page = (REPOSITORY / "docs" / "checkpoints.md").read_text(encoding="utf-8")
    rows = page.partition("## Layouts")[2].partition("|---|")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `([\w-]+)` \|", rows, re.MULTILINE) == list(LAYOUTS)


def test_every_row_of_the_table_has_a_file_and_every_file_of_a_family_a_row() -> None:
    assert tuple(LAYOUTS) == LAYOUT_NAMES
    folder = REPOSITORY / "tfexport" / "model_src" / "checkpoint" / "layouts"
    of_families = [path.stem for path in folder.glob("*.py") if "\nLAYOUT = " in path.read_text()]
    assert sorted(of_families) == sorted(name.replace("-", "_") for name in LAYOUT_NAMES)


# Files of the package that name several families, and why.
NAME_FAMILIES = {
    "layout_names.py": "the table",
    "export/reference/bart_like.py": "formulas do not repeat a mistake of the layout",
    "export/reference/live_module.py": "classes of the source documents, by their layouts",
    "model_src/checkpoint/toolkit_files.py": "whose file it is, before its layout is known",
    "model_src/checkpoint/toolkit_pickles.py": "whose file it is, before its layout is known",
}


def strings_in(node: ast.AST) -> set[object]:
    """The strings that a collection lists, or that are compared with something."""
    parts: list[ast.expr | None] = []
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        parts += node.elts
    elif isinstance(node, ast.Dict):
        parts += node.keys
    elif isinstance(node, ast.Compare):
        parts += [node.left, *node.comparators]
    return {part.value for part in parts if isinstance(part, ast.Constant)}


def test_a_family_is_named_by_its_file_its_row_and_its_page_alone() -> None:
    names = {name for it in LAYOUTS.values() for name in (it.name, *it.model_types)}
    names -= {"annotated", "native"}  # a kind of norm and an engine, too
    package = REPOSITORY / "tfexport"
    others = {}
    for path in package.rglob("*.py"):
        if path.parent.name == "layouts":
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if lists := [found for node in ast.walk(tree) if (found := strings_in(node) & names)]:
            others[path.relative_to(package).as_posix()] = set().union(*lists)
    assert set(others) == set(NAME_FAMILIES), others


def test_layout_of_the_docs_is_registered_and_knows_its_keys() -> None:
    page = (REPOSITORY / "docs" / "checkpoints.md").read_text(encoding="utf-8")
    code = page.partition("### A layout of your own")[2].partition("```python\n")[2]
    try:
        exec(code.partition("```")[0], {})
        layout = LAYOUTS["mine"]
    finally:
        LAYOUTS.pop("mine", None)
    keys = ["src_table", "decoder.1.k.bias", "nothing"]
    assert set(layout.table.map_keys(keys)) == set(keys[:2])
    assert layout.recognises({"model_type": "mine"})
    assert layout.read_config({"attention_heads": 3}) == {"num_heads": 3}
