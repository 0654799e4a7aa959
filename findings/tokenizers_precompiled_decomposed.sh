#!/usr/bin/env bash
# tokenizers 0.23.3, sentencepiece 0.2.3 (seen on 2026-11-29).
#
# The normalizer "Precompiled" of tokenizers holds the rules of a SentencePiece model, but looks them
# up by whole graphemes, of up to five bytes, and else by single characters. Where a letter has two
# marks, or its parts are three bytes each (Korean, half-width Japanese), the rule that composes it is
# not found: the marks stay apart, and most vocabularies have no pieces for them. SentencePiece takes
# the longest rule that matches, so that the same rules compose the same text.
#
# Output seen: whether the decomposed text, and half-width ガ, is what the composed one is.
#   sentencepiece {'Tiếng': True, 'ợ': True, '한': True, 'ガ': True}
#   tokenizers {'Tiếng': False, 'ợ': False, '한': False, 'ガ': False}
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
  tokenizers==0.23.3 sentencepiece==0.2.3 protobuf==7.36.2
cat > "$folder/run.py" <<'PYTHON'
import sys
import unicodedata

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import normalizers

words = ["Tiếng", "ợ", "한", "ガ"]
name = f"{sys.argv[1]}/spiece"
sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter([" ".join(words)] * 20), model_prefix=name, vocab_size=40,
    model_type="char", hard_vocab_limit=False, minloglevel=2,
)
model = sentencepiece_model_pb2.ModelProto()
with open(f"{name}.model", "rb") as file:
    model.ParseFromString(file.read())
whole = sentencepiece.SentencePieceProcessor(model_file=f"{name}.model")
rules = normalizers.Precompiled(model.normalizer_spec.precompiled_charsmap)
given = [unicodedata.normalize("NFD", word) for word in words]
given[-1] = "\uff76\uff9e"  # half-width, with its mark
seen = {
    "sentencepiece": [whole.encode(a) == whole.encode(b) for a, b in zip(given, words)],
    "tokenizers": [rules.normalize_str(a) == b for a, b in zip(given, words)],
}
for library, same in seen.items():
    print(library, dict(zip(words, same)))
assert all(seen["sentencepiece"]) and not any(seen["tokenizers"]), "this has changed"
PYTHON
"$folder/venv/bin/python" "$folder/run.py" "$folder"
