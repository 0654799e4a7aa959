#!/usr/bin/env bash
# sentencepiece 0.2.1 and 0.2.3 (seen on 2026-11-29).
#
# One unigram model, two versions, other ids: where two ways to cut a text have the same score, as of
# a letter that is written three times, for which there are pieces of one and of two, 0.1.99 to 0.2.1
# take the longer piece first, and 0.2.3 the shorter. npm's @sctg/sentencepiece-js 1.3.3 does as the
# older ones. A model that was trained with ids of the older ones is given others.
#
# Output seen:
#   0.2.1 ['▁', 'aa', 'a']
#   0.2.3 ['▁', 'a', 'aa']
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/run.py" <<'PYTHON'
import sys

import sentencepiece
from sentencepiece import sentencepiece_model_pb2

model = sentencepiece_model_pb2.ModelProto()
for piece, kind in (("<unk>", 2), ("<s>", 3), ("</s>", 3), ("▁", 1), ("a", 1), ("aa", 1)):
    model.pieces.add(piece=piece, score=0 if kind > 1 else -len(piece) - 0.7, type=kind)
model.trainer_spec.model_type = 1
model.normalizer_spec.add_dummy_prefix = True
processor = sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())
print(sentencepiece.__version__, processor.encode("aaa", out_type=str))
PYTHON
for version in 0.2.1 0.2.3; do
  python3 -m venv "$folder/$version"
  "$folder/$version/bin/python" -m pip install --quiet --disable-pip-version-check \
    "sentencepiece==$version" protobuf==7.36.2
  "$folder/$version/bin/python" "$folder/run.py"
done > "$folder/seen"
cat "$folder/seen"
diff "$folder/seen" - <<'SEEN'
0.2.1 ['▁', 'aa', 'a']
0.2.3 ['▁', 'a', 'aa']
SEEN
