"""The engine in WebAssembly, in Node: tokens and scores are those of the engine that runs here.

The instruction set ``portable`` computes as WebAssembly does: vectors of four values, no fused
products, and integers of up to 16 bits. What may differ is a logarithm's last bit.
"""

import copy
import hashlib
import io
import json
import os
import random
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn import draw_sources, draw_tokens, draw_weights, engine_config
from tfexport_native import Candidates, Model, Tensor

from tests.support.combinations import few_of
from tfexport.bundle import read_manifest
from tfexport.errors import TfexportError
from tfexport.model_src import TransformerConfig
from tfexport.runtime import Translator
from tfexport.runtime.resolve import Resolver
from tfexport.runtime.text.codec import TextCodec
from tfexport.weight_table import StoredWeight, write_weight_table

NATIVE = Path(__file__).parents[1]
REPOSITORY = NATIVE.parent
PACKAGE = NATIVE / "wasm"
DEMO = REPOSITORY / "examples" / "de-en.bundle"
MOST = 20  # tokens of drawn models
MANY = 60  # sentences of the demo
Call = tuple[Any, ...]  # a name and values


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    if not (PACKAGE / "dist" / "engine.wasm").exists():
        pytest.skip("needs the engine in WebAssembly: make wasm")
    if not shutil.which("node"):
        pytest.skip("needs Node")


def drive(bundle: Path, *calls: Call) -> list[dict[str, Any]]:
    """What calls of the package give: ``{"value": …}`` or ``{"failure": [class, message]}``."""
    given = {
        "bundle": str(bundle),
        "calls": [{"name": name, "values": values} for name, *values in calls],
    }
    done = subprocess.run(
        ["node", NATIVE / "tests" / "wasm" / "drive.mjs"],
        input=json.dumps(given), capture_output=True, text=True, encoding="utf-8",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def values(bundle: Path, *calls: Call) -> list[Any]:
    """The same, where no call may fail."""
    found = drive(bundle, ("load",), *calls)
    assert [each["failure"] for each in found if "failure" in each] == []
    return [each["value"] for each in found[1:]]


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


def write_bundle(
    folder: Path, config: TransformerConfig, tensors: dict[str, Tensor], **changes: Any
) -> None:
    """What the package reads of a bundle, with weights that are no files of an export."""
    folder.mkdir()
    table, parts, size = {}, [], 0

    def put(values: np.ndarray[Any, Any]) -> int:
        nonlocal size
        content = np.ascontiguousarray(values).tobytes()
        parts.append(content + bytes(-len(content) % 64))
        size += len(parts[-1])
        return size - len(parts[-1])

    for name, (stored, scales, _) in tensors.items():
        strides = tuple(np.cumprod([1, *stored.shape[:0:-1]])[::-1].tolist())
        offset = put(stored)
        table[name] = StoredWeight(
            str(stored.dtype), offset, stored.shape, strides,
            None if scales is None else put(scales),
        )  # fmt: skip
    (folder / "weights.bin").write_bytes(b"".join(parts))
    write_weight_table(folder, table)
    ids, longest = config.special_ids, config.longest
    write_json(folder / "manifest.json", {
        "format": "tfexport-bundle", "format_version": 1, "config": config.to_dict(),
        "special_ids": {"pad": ids.pad, "bos": ids.bos, "eos": ids.eos, "unk": None,
                        "start": config.start_id},
        "limits": {"source_vocab_size": config.source_vocab_size,
                   "target_vocab_size": config.target_vocab_size,
                   "max_source_length": longest, "max_target_length": longest},
        "tokenizers": {}, "module": None, "quantization": None, "languages": None,
        "generation": {}, **changes,
    })  # fmt: skip
    write_digests(folder)


def write_digests(folder: Path) -> None:
    """Make the manifest one of the files as they are."""
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    manifest["files"] = {
        path.name: {"size": path.stat().st_size,
                    "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        for path in folder.iterdir() if path.name != "manifest.json"
    }  # fmt: skip
    write_json(folder / "manifest.json", manifest)


@pytest.mark.parametrize("int8", [False, True], ids=["float32", "int8"])
@pytest.mark.parametrize("seed", few_of(range(24), *range(6)))
def test_drawn_models_give_the_results_of_the_engine(seed: int, int8: bool, tmp_path: Path) -> None:
    config, tensors = draw_weights(seed, int8)
    write_bundle(tmp_path / "a.bundle", config, tensors)
    model = Model(engine_config(config), tensors, instruction_set="portable")
    sources = draw_sources(config, seed)
    written = draw_tokens(config, seed, 1)[0, : MOST - 1].tolist()
    source = sources[1]
    greedy, beam, attention = values(
        tmp_path / "a.bundle",
        ("generate", sources, {"maxLength": MOST}),
        ("generate", sources, {"maxLength": MOST, "beamSize": 3, "numHypotheses": 3}),
        ("attention", source, written),
    )
    sequences, counts, scores = model.generate(sources, MOST, return_scores=True)
    end = config.special_ids.eos
    assert [row["tokens"] for row in greedy] == [
        [token for token in row[:count].tolist() if token != end or not finished]
        for row, count, finished in zip(
            sequences, counts, (row[count - 1] == end for row, count in zip(sequences, counts,
            strict=True)), strict=True,
        )
    ]  # fmt: skip
    # A sine's last bit may round a value of int8 models to another integer.
    near = {"rtol": 2e-4 if int8 else 2e-6, "atol": 1e-7}
    np.testing.assert_allclose([row["score"] for row in greedy], scores, **near)
    found = model.beam(sources, 3, 3, MOST)
    best = [row["hypotheses"][0]["score"] for row in beam]
    expected = [best_score(found, i, end) for i in range(len(sources))]
    np.testing.assert_allclose(best, expected, **near)
    batch = model.new_batch()
    batch.enter([source])
    shape = (1, *model.attention_shape, len(written), len(source))
    weights = np.zeros(shape, np.float32)
    start = config.special_ids.decoder_start
    batch.step(np.array([[start, *written[:-1]]]), attention=weights)
    assert attention["dims"] == list(shape[1:])
    np.testing.assert_allclose(
        attention["data"], weights.ravel(), rtol=1e-5, atol=1e-3 if int8 else 1e-6
    )


def best_score(found: Candidates, sentence: int, end: int) -> float:
    """The best finished hypothesis' mean log-probability, from the sums along its way."""
    sums, best = [0.0], -np.inf
    for step in range(found.steps[sentence]):
        tokens, parents = found.tokens[step, sentence], found.parents[step, sentence]
        totals = [sums[p] + s for p, s in zip(parents, found.log_probs[step, sentence], strict=True)
                  if p < len(sums)]  # fmt: skip
        for rank, total in enumerate(totals[:3]):
            if tokens[rank] == end or step + 1 == MOST:
                best = max(best, total / (step + 1))
        sums = [total for total, token in zip(totals, tokens, strict=False) if token != end][:3]
    return float(best)


OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "greedy": ({}, {}),
    "beam": ({"beam_size": 4, "num_hypotheses": 3, "length_penalty": 0.6},
             {"beamSize": 4, "numHypotheses": 3, "lengthPenalty": 0.6}),
    "patience": ({"beam_size": 2, "patience": 2.0}, {"beamSize": 2, "patience": 2}),
    "transformers": (
        {"beam_size": 3, "search_rules": "transformers", "early_stopping": False,
         "repetition_penalty": 1.2, "no_repeat_ngram_size": 2, "min_length": 4,
         "renormalize_logits": True, "suppress_sequences": [[9, 8], [11]]},
        {"beamSize": 3, "searchRules": "transformers", "earlyStopping": False,
         "repetitionPenalty": 1.2, "noRepeatNgramSize": 2, "minLength": 4,
         "renormalizeLogits": True, "suppressSequences": [[9, 8], [11]]},
    ),
    "exhaustive": (
        {"beam_size": 3, "search_rules": "transformers", "early_stopping": False,
         "exhaustive": True, "num_hypotheses": 2},
        {"beamSize": 3, "searchRules": "transformers", "earlyStopping": False,
         "exhaustive": True, "numHypotheses": 2},
    ),
    "greedy with bans": (
        {"no_repeat_ngram_size": 1, "min_length": 6, "suppress_first_tokens": [40],
         "return_end_token": True},
        {"noRepeatNgramSize": 1, "minLength": 6, "suppressFirstTokens": [40],
         "returnEndToken": True},
    ),
    "greedy with a least length": (
        {"min_length": 17, "return_end_token": True}, {"minLength": 17, "returnEndToken": True},
    ),
    "forced": ({"beam_size": 2, "first_token": 77, "last_token": 3, "max_length": 6},
               {"beamSize": 2, "firstToken": 77, "lastToken": 3, "maxLength": 6}),
    "end tokens": ({"end_tokens": [3, 5, 6], "max_length": 9},
                   {"endTokens": [3, 5, 6], "maxLength": 9}),
    "source n-grams": ({"beam_size": 2, "encoder_no_repeat_ngram_size": 1, "disable_unk": True},
                       {"beamSize": 2, "encoderNoRepeatNgramSize": 1, "disableUnk": True}),
}  # fmt: skip


@pytest.fixture(scope="module")
def demo() -> Iterator[tuple[Translator, list[list[int]]]]:
    """The demo on the engine that runs here, and ids of sentences."""
    lines = (DEMO.parent / "de-en" / "test.tsv").read_text(encoding="utf-8").splitlines()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TFEXPORT_NATIVE_INSTRUCTION_SET", "portable")
        with Translator(DEMO, engine="native", threads=1) as translator:
            texts = TextCodec(DEMO, read_manifest(DEMO))
            yield translator, [texts.encode(line.partition("\t")[0]) for line in lines[:MANY]]


def test_the_demo_gives_the_results_of_the_engine(
    demo: tuple[Translator, list[list[int]]],
) -> None:
    translator, rows = demo
    found = values(DEMO, *(("generate", rows, given) for _, given in OPTIONS.values()))
    for (name, (options, _)), results in zip(OPTIONS.items(), found, strict=True):
        expected = translator.generate(rows, **{"beam_size": 1, **options})
        for row, result in zip(expected, results, strict=True):
            hypotheses = result["hypotheses"]
            assert [each["tokens"] for each in hypotheses] == [
                list(each.tokens) for each in row.hypotheses
            ], name
            scores = [each["score"] for each in hypotheses]
            np.testing.assert_allclose(
                scores, [each.score for each in row.hypotheses], rtol=2e-5, err_msg=name
            )
            assert [each["finished"] for each in hypotheses] == [
                each.finished for each in row.hypotheses
            ], name


def test_loading_tells_how_far_it_is() -> None:
    (found,) = drive(DEMO, ("load",))
    progress = found["value"]
    assert [each["total"] for each in progress] == [progress[0]["total"]] * len(progress)
    assert {each["file"] for each in progress} == {"weights.bin", "weights.json", "tokenizer.json"}
    assert progress[-1]["loaded"] == progress[-1]["total"]


def test_rows_and_options_that_cannot_be_used_are_refused_by_name() -> None:
    wrong: dict[str, Call] = {
        "row 1 is no list of ids from 0 to 5999": ("generate", [[2, 3], [6000]]),
        "row 0 is no list": ("generate", [["2"]]),
        "row 0 has 513 tokens; the model takes 512": ("generate", [[4] * 513]),
        "beamsize: is not known here": ("generate", [[4]], {"beamsize": 2}),
        "beamSize: 0, expected an integer": ("generate", [[4]], {"beamSize": 0}),
        "numHypotheses exceeds beamSize": ("generate", [[4]], {"numHypotheses": 2}),
        "sampling: the engine does not sample": ("generate", [[4]], {"sampling": True}),
        "endTokens: 6000 is no id": ("generate", [[4]], {"endTokens": [6000]}),
        "firstToken is an end token": ("generate", [[4]], {"firstToken": 3}),
        "no token is allowed": (
            "generate", [[4]], {"suppressTokens": [*range(6000)], "beamSize": 2},
        ),
        "by the rules of transformers": (
            "generate", [[4]], {"searchRules": "transformers", "noRepeatNgramSize": 2},
        ),
        "is no text": ("translate", [5]),
        "half of a character": ("translate", ["\ud800"]),
        "no ids below 6000": ("attention", [4], [6000]),
    }  # fmt: skip
    found = drive(DEMO, ("load",), *wrong.values(), ("generate", [[4], []], {}))
    for said, each in zip(wrong, found[1:-1], strict=True):
        name, message = each.get("failure", ["", ""])
        assert name in ("OptionError", "EngineError"), (said, each)
        assert said in message
    last = found[-1]["value"]
    assert last[0]["tokens"]
    assert last[1] == {
        "tokens": [], "score": 0, "finished": True,
        "hypotheses": [{"tokens": [], "score": 0, "finished": True}],
    }  # fmt: skip


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A bundle of a drawn model."""
    write_bundle(tmp_path / "a.bundle", *draw_weights(2, int8=True))
    return tmp_path / "a.bundle"


def changed(bundle: Path, change: Callable[[dict[str, Any]], object], file: str) -> str:
    """What loading says of a bundle of which one JSON file is changed; empty if it loads."""
    path = bundle / file
    before = path.read_text(encoding="utf-8")
    content = json.loads(before)
    change(content)
    write_json(path, content)
    write_digests(bundle)
    (found,) = drive(bundle, ("load",))
    path.write_text(before, encoding="utf-8")
    return ": ".join(found.get("failure", []))


def test_damaged_tables_are_refused(small: Path) -> None:
    size = (small / "weights.bin").stat().st_size
    name = "decoder.layers.0.self_attn.q_proj.weight"
    damages: list[tuple[str, Any]] = [
        ("offset", size), ("offset", -1), ("offset", 1.5), ("offset", None), ("offset", "0"),
        ("scales", size - 4), ("scales", 2), ("scales", None), ("shape", [0, 4]),
        ("shape", [2**40, 2**40]), ("shape", [4]), ("shape", []), ("strides", [2**52, 1]),
        ("strides", [-1, 1]), ("dtype", "float64"), ("dtype", "float32"), ("shape", [4, 4]),
    ]  # fmt: skip
    assert changed(small, lambda table: None, "weights.json") == ""
    for key, value in damages:
        said = changed(small, lambda table: table[name].update({key: value}), "weights.json")  # noqa: B023
        assert said.startswith(("BundleError: weights.json", "EngineError")), (key, value, said)
        assert name in said
    assert "no tensor" in changed(small, lambda table: table.pop(name), "weights.json")


def test_bundles_that_the_engine_cannot_run_are_refused_by_name(small: Path) -> None:
    wrong: dict[str, Callable[[dict[str, Any]], object]] = {
        "format version 2; this reads 1": lambda m: m.update(format_version=2),
        "not a bundle's": lambda m: m.update(format="other"),
        "does not know the config key new_key": lambda m: m["config"].update(new_key=1),
        'does not know norm "other"': lambda m: m["config"].update(norm="other"),
        "config has no residual_scale": lambda m: m["config"].pop("residual_scale"),
        "its d_model is 1048576": lambda m: m["config"].update(d_model=1 << 20),
        "its d_ff is 1000000": lambda m: m["config"].update(d_ff=10**6),
        "int4": lambda m: m.update(quantization={"weights": "int4"}),
        "told languages by tokens": lambda m: m.update(languages={"ids": {"de": 4}}),
        "a module of the user's own": lambda m: m.update(module={"inputs": []}),
        "its eos is no id": lambda m: m["special_ids"].update(eos=-1),
        "num_encoder_layers": lambda m: m["config"].update(num_encoder_layers=1000),
        "eos_id": lambda m: m["special_ids"].update(eos=10**6),
    }  # fmt: skip
    for said, change in wrong.items():
        found = changed(small, change, "manifest.json")
        assert found.startswith(("BundleError", "EngineError")), (said, found)
        assert said.replace("num_encoder_layers", "no tensor") in found


def test_files_that_are_not_the_manifests_are_refused(small: Path) -> None:
    path = small / "weights.bin"
    content = path.read_bytes()
    for damaged, said in (
        (content[:-64], f"weights.bin: has {len(content) - 64} bytes; expected {len(content)}"),
        (content + b"x", f"weights.bin: has more than {len(content)} bytes"),
        (content[:-1] + bytes([content[-1] ^ 1]), "weights.bin: is not what manifest.json was"),
    ):
        path.write_bytes(damaged)
        (found,) = drive(small, ("load",))
        assert found["failure"][0] == "BundleError"
        assert said in found["failure"][1]


# In Python's names: options that a bundle may have as its own defaults, and a call may name.
DRAWN: dict[str, list[Any]] = {
    "beam_size": [1, 2, 5], "num_hypotheses": [1, 3], "length_penalty": [0.0, 1.0, -1.0],
    "patience": [1.0, 2.0], "early_stopping": [True, False], "exhaustive": [True, False],
    "search_rules": ["tfexport", "transformers"], "renormalize_logits": [True, False],
    "sampling": [False], "temperature": [0.5], "top_k": [4], "min_length": [0, 3, 300],
    "max_length": [2, 256, 1000], "no_repeat_ngram_size": [0, 2], "repetition_penalty": [1.0, 1.5],
    "suppress_tokens": [[], [7]], "suppress_first_tokens": [[8]], "suppress_sequences": [[[8, 9]]],
    "first_token": [9], "last_token": [3], "end_tokens": [[3], [4, 5]],
}  # fmt: skip
NOT_OWN = ("patience",)
NOT_HERE = ("temperature", "top_k")


def camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def test_options_are_resolved_as_in_python() -> None:
    draw = random.Random(5)
    manifest = read_manifest(DEMO)
    raw = json.loads((DEMO / "manifest.json").read_text(encoding="utf-8"))
    texts = TextCodec(DEMO, manifest)
    calls, expected = [], []
    for _ in range(400):
        drawn = [
            {name: draw.choice(DRAWN[name]) for name in draw.sample([*DRAWN], draw.randrange(6))}
            for _ in range(2)
        ]
        own = {name: value for name, value in drawn[0].items() if name not in NOT_OWN}
        given = {name: value for name, value in drawn[1].items() if name not in NOT_HERE}
        changed_manifest = copy.deepcopy(raw) | {"generation": own}
        named = {camel(name): value for name, value in given.items()}
        calls.append(("resolve", changed_manifest, named))
        try:
            expected.append(Resolver(manifest, texts, own).resolve(given)[0])
        except TfexportError as error:
            expected.append(error)
    agreed = 0
    for call, found, options in zip(calls, drive(DEMO, *calls), expected, strict=True):
        about = (call[1]["generation"], call[2], found, options)
        if "failure" in found:
            refused = "not done here" in found["failure"][1] or "no room" in found["failure"][1]
            assert refused or isinstance(options, TfexportError), about
            continue
        assert not isinstance(options, TfexportError), about
        agreed += 1
        value = found["value"]
        for name in DRAWN.keys() - {"temperature", "top_k", "end_tokens"}:
            theirs = getattr(options, name)
            ours = value[camel(name)]
            assert json.dumps(ours) == json.dumps(theirs) or ours == theirs, (name, about)
        assert value["ends"] == list(options.end_tokens), about
    assert agreed > 100


def test_texts_are_those_of_sentencepiece(tmp_path: Path) -> None:
    if not (PACKAGE / "node_modules" / "@sctg").exists():
        pytest.skip("needs npm packages: make native/wasm/node_modules/ready")
    sentencepiece = pytest.importorskip("sentencepiece")
    lines = (DEMO.parent / "de-en" / "test.tsv").read_text(encoding="utf-8").splitlines()
    german = [line.partition("\t")[0] for line in lines]
    trained = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(german), model_writer=trained, vocab_size=400, minloglevel=2
    )
    bundle = tmp_path / "a.bundle"
    shutil.copytree(DEMO, bundle)
    (bundle / "a.model").write_bytes(trained.getvalue())
    manifest = json.loads((bundle / "manifest.json").read_text(encoding="utf-8"))
    entry = {"kind": "sentencepiece", "file": "a.model"}
    write_json(
        bundle / "manifest.json", manifest | {"tokenizers": {"source": entry, "target": entry}}
    )
    write_digests(bundle)
    processor = sentencepiece.SentencePieceProcessor(model_proto=trained.getvalue())
    texts = [*german[:MANY], " zwei  Leerzeichen ", "\ufb01 \u2167 \u00bd", "\u65e5\u672c"]
    rows = [processor.encode(text) for text in texts]
    encoded = values(bundle, *(("encode", text) for text in texts))
    assert encoded == [[2, *row, 3] for row in rows]
    # The model has more words than there are pieces.
    decoded = values(bundle, *(("decode", [*row, 400, 5999]) for row in rows), ("decode", []))
    assert decoded == [*(processor.decode(row) for row in rows), ""]


def test_kernels_give_what_plain_formulas_give(tmp_path: Path) -> None:
    if not (shutil.which("emcmake") and shutil.which("cmake")):
        pytest.skip("needs emscripten and CMake")
    # The tools of Debian's emscripten look for Debian's packages of Node, and build no libraries.
    environment = os.environ | {"NODE_PATH": "/usr/share/nodejs", "EM_FROZEN_CACHE": "1"}
    options = ["-DTFN_TESTS=ON", "-DTFN_OPTIMIZE=-O1"]
    for command in (
        ["emcmake", "cmake", "-S", str(PACKAGE), "-B", str(tmp_path), *options],
        ["cmake", "--build", str(tmp_path), "--parallel", "2"],
        # Its loader would fetch a file's address, which Node refuses.
        ["node", "--no-experimental-fetch", str(tmp_path / "kernels.js")],
    ):
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^simd128: \d{4,} checks, 0 failed$", done.stdout, re.MULTILINE)


def test_packages_files_are_small() -> None:
    for built in (PACKAGE / "dist").glob("*.wasm"):
        assert built.stat().st_size <= 1_000_000
