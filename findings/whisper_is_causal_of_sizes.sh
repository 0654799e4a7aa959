#!/usr/bin/env bash
# openai-whisper 20250625, torch 2.13.0 (seen on 2026-11-29).
#
# torch.export.export cannot export the decoder of openai-whisper with a number of tokens that
# varies: its attention calls scaled_dot_product_attention(is_causal=mask is not None and n_ctx > 1).
# While torch traces, `n_ctx > 1` is a SymBool, and the function, which is built in, takes a bool
# only. With a fixed number of tokens the same call is exported.
#
# Output seen:
#   fixed   exported
#   dynamic TypeError: scaled_dot_product_attention(): argument 'is_causal' must be bool, not SymBool
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
  torch==2.13.0 numpy==2.3.5 numba==0.63.1 tiktoken==0.12.0 tqdm==4.67.1 more-itertools==10.8.0 \
  setuptools==80.9.0
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps \
  --no-build-isolation openai-whisper==20250625
cat > "$folder/run.py" <<'PYTHON'
import torch
from torch.export import Dim
from whisper.model import ModelDimensions, TextDecoder

sizes = ModelDimensions(n_mels=8, n_audio_ctx=6, n_audio_state=16, n_audio_head=2, n_audio_layer=1,
                        n_vocab=32, n_text_ctx=16, n_text_state=16, n_text_head=2, n_text_layer=1)
decoder = TextDecoder(sizes.n_vocab, sizes.n_text_ctx, sizes.n_text_state, sizes.n_text_head,
                      sizes.n_text_layer).eval()
given = torch.ones(2, 5, dtype=torch.long), torch.randn(2, 6, 16)
torch.export.export(decoder, given, strict=False)
print("fixed   exported")
axes = {1: Dim("tokens", min=2, max=16)}, None
try:
    torch.export.export(decoder, given, dynamic_shapes=axes, strict=False)
except Exception as error:
    lines = [line for line in str(error).splitlines() if "is_causal" in line and "SymBool" in line]
    assert lines, error
    print("dynamic", f"{type(error).__name__}:", lines[0].strip())
else:
    raise SystemExit("it is exported now")
PYTHON
"$folder/venv/bin/python" "$folder/run.py" 2>/dev/null
