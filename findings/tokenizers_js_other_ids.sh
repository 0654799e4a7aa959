#!/usr/bin/env bash
# @huggingface/tokenizers 0.2.0 of npm, tokenizers 0.23.3 of PyPI (seen on 2026-11-29).
#
# One tokenizer.json, two libraries of the same makers, other ids. In JavaScript
# - the pre-tokenizer Whitespace takes the letters of ASCII only for letters, so that "für" is three
#   words, and a vocabulary of words knows none of them;
# - Lowercase makes a final sigma, and in Python it does not;
# - the normalizer Precompiled is Unicode's NFKC whatever its rules are: those of nmt_nfkc_cf, which
#   fold case, do nothing;
# - decode removes spaces before punctuation unless it is told not to, and refuses an empty list;
# - of a WordLevel model, unk_token in the file is not read: unknown words have no id at all.
#
# Output seen: pieces, and what decode makes of "a , b".
#   Python ['für', 'straße'] ['λογοσ'] ['▁', 'a', 'b'] 'a , b' [0]
#   JavaScript ['f', 'ü', 'r', 'stra', 'ß', 'e'] ['λογος'] ['▁', 'AB'] 'a, b' [null]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/python -m pip install --quiet --disable-pip-version-check \
  tokenizers==0.23.3 sentencepiece==0.2.3 protobuf==7.36.2
npm install --silent --no-audit --no-fund --ignore-scripts --prefix . @huggingface/tokenizers@0.2.0
cat > run.py <<'PYTHON'
import io

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

words = {word: i for i, word in enumerate(["<unk>", "für", "straße", "λογοσ", "a", "b", ","])}


def save(name, model, normalizer=None, split=None, decoder=None):
    tokenizer = Tokenizer(model)
    if normalizer:
        tokenizer.normalizer = normalizer
    if split:
        tokenizer.pre_tokenizer = split
    if decoder:
        tokenizer.decoder = decoder
    tokenizer.save(name)
    return tokenizer


def level():
    return models.WordLevel(words, unk_token="<unk>")


split = save("split.json", level(), split=pre_tokenizers.Whitespace())
lower = save("lower.json", level(), normalizers.Lowercase(), pre_tokenizers.WhitespaceSplit())
trained = io.BytesIO()
sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(["a b"] * 9), model_writer=trained, vocab_size=9, minloglevel=2,
    hard_vocab_limit=False, normalization_rule_name="nmt_nfkc_cf",
)
model = sentencepiece_model_pb2.ModelProto()
model.ParseFromString(trained.getvalue())
pieces = [("<unk>", 0.0), ("▁", -1.0), ("a", -1.0), ("b", -1.0)]
rules = normalizers.Precompiled(model.normalizer_spec.precompiled_charsmap)
folded = save("folded.json", models.Unigram(pieces, 0), rules, pre_tokenizers.Metaspace())
print(
    "Python", split.encode("für straße").tokens, lower.encode("ΛΟΓΟΣ").tokens,
    folded.encode("AB").tokens, repr(split.decode([4, 6, 5])), lower.encode("x").ids,
)
PYTHON
cat > run.mjs <<'NODE'
import { readFileSync } from "node:fs";
import { Tokenizer } from "@huggingface/tokenizers";

const open = (name) => new Tokenizer(JSON.parse(readFileSync(name, "utf8")), {});
const [split, lower, folded] = ["split.json", "lower.json", "folded.json"].map(open);
const list = (tokens) => `[${tokens.map((token) => `'${token}'`).join(", ")}]`;
const ids = JSON.stringify(lower.encode("x").ids.map((id) => id ?? null));
console.log(
  "JavaScript", list(split.encode("für straße").tokens), list(lower.encode("ΛΟΓΟΣ").tokens),
  list(folded.encode("AB").tokens), `'${split.decode([4, 6, 5])}'`, ids,
);
NODE
{ venv/bin/python run.py; node run.mjs; } > seen
cat seen
diff seen - <<'SEEN'
Python ['für', 'straße'] ['λογοσ'] ['▁', 'a', 'b'] 'a , b' [0]
JavaScript ['f', 'ü', 'r', 'stra', 'ß', 'e'] ['λογος'] ['▁', 'AB'] 'a, b' [null]
SEEN
