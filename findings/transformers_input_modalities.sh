#!/usr/bin/env bash
# transformers 5.23.0, torch 2.13.0 (seen on 2026-11-29).
#
# `input_modalities` of a model class is no list of what its forward reads. Pop2Piano, whose encoder
# takes `input_features` of sound, says "text", as do classes that read text alone; Pix2Struct, whose
# forward takes no source text (`flattened_patches`), says image and text, as does Florence-2, which
# takes `pixel_values` and `input_ids`. A tool that asks the attribute what to hand over drops a
# sound, or waits for a text. The parameters of `forward` tell.
#
# Output seen:
#   Pop2PianoForConditionalGeneration  says text        reads sound
#   Pix2StructForConditionalGeneration says image, text reads image
#   Florence2ForConditionalGeneration  says image, text reads image, text
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
  torch==2.13.0 transformers==5.23.0
cat > "$folder/run.py" <<'PYTHON'
import inspect

import transformers

READ = {"input_features": "sound", "pixel_values": "image", "flattened_patches": "image",
        "input_ids": "text"}
EXPECTED = {
    "Pop2PianoForConditionalGeneration": ("text", "sound"),
    "Pix2StructForConditionalGeneration": ("image, text", "image"),
    "Florence2ForConditionalGeneration": ("image, text", "image, text"),
}
for name, expected in EXPECTED.items():
    kind = getattr(transformers, name)
    modalities = kind.input_modalities
    said = modalities if isinstance(modalities, str) else ", ".join(sorted(modalities))
    parameters = inspect.signature(kind.forward).parameters
    read = {what for parameter, what in READ.items() if parameter in parameters}
    if "input_features" in parameters:
        read.discard("text")  # Pop2Piano's input_ids are refused where it encodes sound
    seen = said, ", ".join(sorted(read))
    print(f"{name:34} says {seen[0]:11} reads {seen[1]}")
    assert seen == expected, f"{name}: {seen}, not {expected}"
PYTHON
HF_HUB_OFFLINE=1 "$folder/venv/bin/python" "$folder/run.py" 2>/dev/null
