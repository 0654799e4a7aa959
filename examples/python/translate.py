"""Translate lines with one generate.onnx and a tokenizer: onnxruntime alone, no tfexport.

pip install onnxruntime tokenizers
tfexport onnx --checkpoint examples/de-en -o generate.onnx --graph generate
python examples/python/translate.py generate.onnx examples/de-en/tokenizer.json < input.txt
"""

import json
import sys
from typing import Any

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

BATCH_SIZE = 32
MAX_LENGTH = 256


def main() -> None:
    """Read stdin, write stdout, line by line."""
    graph, tokenizer_file = sys.argv[1:]
    onnxruntime.disable_telemetry_events()  # nothing is reported to onnxruntime's maker
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    # All that the file's users need to know of the model travels in its metadata.
    config = json.loads(session.get_modelmeta().custom_metadata_map["tfexport_config"])
    tokenizer = Tokenizer.from_file(tokenizer_file)
    sys.stdin.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    lines = [line.rstrip("\r\n") for line in sys.stdin]
    for start in range(0, len(lines), BATCH_SIZE):
        for text in translate(lines[start : start + BATCH_SIZE], session, tokenizer, config):
            print(text)


def translate(texts: list[str], session: Any, tokenizer: Any, config: dict[str, Any]) -> list[str]:
    """Translate a batch of lines; a blank one stays empty."""
    before = [config["bos_id"]] if config["add_source_bos"] else []
    after = [config["eos_id"]] if config["add_source_eos"] else []
    rows = [
        [*before, *tokenizer.encode(text, add_special_tokens=False).ids, *after]
        if text.strip()
        else []
        for text in texts
    ]
    longest = max(1, max(map(len, rows)))
    ids = np.full((len(rows), longest), config["pad_id"], np.int64)
    mask = np.zeros((len(rows), longest), np.int64)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = row
        mask[i, : len(row)] = 1  # from the lengths: a pad id inside a text is a token
    feeds = {"input_ids": ids, "attention_mask": mask, "max_length": np.array(MAX_LENGTH)}
    sequences, _scores = session.run(["sequences", "scores"], feeds)
    found = []
    for row, kept in zip(sequences.tolist(), mask, strict=True):
        end = row.index(config["eos_id"]) if config["eos_id"] in row else len(row)
        found.append(tokenizer.decode(row[:end]) if kept.any() else "")
    return found


if __name__ == "__main__":
    main()
