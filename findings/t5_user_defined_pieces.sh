#!/usr/bin/env bash
# transformers 5.23.0, sentencepiece 0.2.3, tokenizers 0.23.3 (seen on 2026-11-29).
#
# A T5 folder whose spiece.model has user-defined pieces, such as MADLAD-400's <2de>, gives other ids
# depending on whether tokenizer_config.json has the key "additional_special_tokens", even as an
# empty list. Without the key, AutoTokenizer makes special tokens of all user-defined pieces: what
# follows one gets a new "▁", and the "▁" in front of the text is gone. With "[]" it gives what
# SentencePiece itself gives for the same file.
#
# Output seen:
#   sentencepiece   ['▁', '<2de>', 'w', 'e']
#   without the key ['<2de>', '▁', 'w', 'e']
#   with []         ['▁', '<2de>', 'w', 'e']
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
  transformers==5.23.0 sentencepiece==0.2.3 tokenizers==0.23.3 protobuf==7.36.2
cat > "$folder/run.py" <<'PYTHON'
import json, sys
from pathlib import Path

import sentencepiece
from transformers import AutoTokenizer

folder, text = Path(sys.argv[1]), "<2de>we"
lines = ["the house is small", "we see the world", "a bird sings"] * 20
with (folder / "spiece.model").open("wb") as file:
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=file, vocab_size=24, model_type="char",
        hard_vocab_limit=False, minloglevel=2, unk_id=0, pad_id=1, eos_id=2, bos_id=-1,
        user_defined_symbols=["<2de>"],
    )
(folder / "config.json").write_text('{"model_type": "t5"}')
seen = {"sentencepiece": sentencepiece.SentencePieceProcessor(
    model_file=str(folder / "spiece.model")).encode(text, out_type=str)}
for name, more in (("without the key", {}), ("with []", {"additional_special_tokens": []})):
    settings = {"tokenizer_class": "T5Tokenizer", "extra_ids": 0, **more}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    seen[name] = AutoTokenizer.from_pretrained(folder).tokenize(text)
for name, pieces in seen.items():
    print(f"{name:15} {pieces}")
assert seen["sentencepiece"] == ["▁", "<2de>", "w", "e"], "SentencePiece gives something else now"
assert seen["with []"] == seen["sentencepiece"], "transformers with [] differs now"
assert seen["without the key"] == ["<2de>", "▁", "w", "e"], "without the key it has changed"
PYTHON
mkdir "$folder/t5"
HF_HUB_OFFLINE=1 "$folder/venv/bin/python" "$folder/run.py" "$folder/t5" 2>/dev/null
