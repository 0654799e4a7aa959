"""config.json and ``key=value`` words, right and wrong, compared with a sound checkpoint."""

from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.bundles import command
from tests.fuzz.groups import checkpoints
from tests.fuzz.mutate import allowed, dumps, mutate_bytes, mutate_json, number, odd, text
from tfexport.model_src.checkpoint.read import examine_checkpoint, load_checkpoint
from tfexport.model_src.config import config_keys

BASE: dict[str, Any] = {
    "num_heads": 2, "pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3, "add_source_eos": True,
    "norm_placement": "post", "activation": "relu", "positions": "sinusoidal", "norm_eps": 1e-5,
    "mask_fill": "-inf", "scale_embeddings": True, "max_positions": 64, "tie_output": False,
    "rename": {"core.{weight}": "transformer.{weight}"}, "ignore": ["criterion.{weight}"],
}  # fmt: skip
PATTERNS = (
    "a{99999999999}", "{" * 5000 + "}" * 5000, "{", "}", "{}", "{weight}", "{weight}{weight}", "",
    "transformer.{weight}", "{stack}.{layer}.{weight}", "{layer}{head}", "{layer.x}", "{qkv!r}",
    "{weight}.{kind}", "{side}", "{0}", "(.*)", "\ud800", "x" * 10**5,
)  # fmt: skip
NAMES: tuple[Any, ...] = (
    "", "x", "{weight}", "{layer}", "transformer.{weight}", "{stack}.{weight}", "{kind}", "\0", "{",
    "{weight.__class__}", "{weight!r}", {"encoder": "decoder"}, {"a": 1}, {}, "auto",
)  # fmt: skip


def prepare(bundle: Path) -> None:
    """Write and read a sound checkpoint."""
    checkpoints.prepare(bundle)


def run(rng: Random, scratch: Path, bundle: Path) -> None:
    """Read the checkpoint with a drawn config."""
    path = bundle.parent / "sound-checkpoint.pt"
    config = scratch / "config.json"
    tree: Any = {key: value for key, value in BASE.items() if rng.random() < 0.9}
    for _ in range(rng.choice([0, 1, 1, 2, 4])):
        if isinstance(tree, dict | list):
            tree = _change(rng, tree)
    content = dumps(tree).encode("utf-8", "surrogatepass")
    config.write_bytes(mutate_bytes(rng, content) if rng.random() < 0.1 else content)
    words = [_word(rng) for _ in range(rng.choice([0, 0, 1, 2]))]
    layout = rng.choice([None, None, None, "native", "annotated", "nn-transformer-rebuilt", "x"])
    kind = rng.randrange(4)
    if kind == 0:
        safe = [word for word in words if "\0" not in word]
        command("inspect", path, "--config", config, *(f"--set={word}" for word in safe))
    elif kind == 1:
        with allowed():
            examine_checkpoint(path, config, words, layout)
    else:
        with allowed():
            load_checkpoint(path, config, words, layout).build()


def _change(rng: Random, tree: Any) -> Any:
    if isinstance(tree, dict) and rng.random() < 0.3:
        rules = [rng.choice(PATTERNS) for _ in range(rng.randrange(3))]
        if rng.random() < 0.5:
            tree["ignore"] = rules
        else:
            named: Any = {rule: rng.choice(NAMES) for rule in rules}
            tree["rename"] = named if rng.random() < 0.8 else "auto"
        return tree
    if isinstance(tree, dict) and rng.random() < 0.5:
        tree[rng.choice(config_keys())] = rng.choice([odd(rng), number(rng), rng.randrange(10)])
        return tree
    return mutate_json(rng, tree)


def _word(rng: Random) -> str:
    key = rng.choice([*config_keys(), text(rng)])
    value = rng.choice(
        [text(rng), str(rng.randrange(20)), "9" * rng.choice([30, 5000]), "1e400", "[1"]
    )
    return rng.choice(
        [f"{key}={value}", f"{key}={value}", f"{key}", f"={value}", f"{key}=={value}"]
    )
