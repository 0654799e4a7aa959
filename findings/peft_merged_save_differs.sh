#!/usr/bin/env bash
# peft 0.21.2, transformers 5.23.0, torch 2.13.0 (seen on 2026-11-29).
#
# A LoRA adapter whose `modules_to_save` holds a table that the model shares (`shared`, `lm_head`):
# after `merge_and_unload()` the logits are those of the adapter, but after `save_pretrained` and
# `from_pretrained` they are others. The trained copy is one table, and what shared the old one
# keeps that. Merging writes `tie_word_embeddings=False`, with a warning. Then
# - BART's file has one name of each table, and loading draws the tables of the other names anew
#   (its report lists them as MISSING);
# - T5's encoder and decoder get `shared`, the trained copy, whatever the merged model had there,
#   and nothing says so. That is so of an untied T5 too.
# Right are `lm_head` of T5, and untied BARTs. `ensure_weight_tying=True` changes nothing for
# `shared`.
#
# Output seen: the largest difference of the logits from those of the adapter, in memory and loaded.
#   T5   tied                 ['shared']             memory 0.00 loaded 2.09
#   T5   tied                 ['lm_head']            memory 0.00 loaded 0.00
#   T5   tied                 ['shared', 'lm_head']  memory 0.00 loaded 0.85
#   T5   not tied             ['shared']             memory 0.00 loaded 8.35
#   BART tied                 ['shared']             memory 0.00 loaded 0.31
#   BART tied                 ['lm_head']            memory 0.00 loaded 3.42
#   BART tied                 ['shared', 'lm_head']  memory 0.00 loaded 2.93
#   BART not tied             ['shared']             memory 0.00 loaded 0.00
#   T5   ensure_weight_tying  ['shared']             memory 0.00 loaded 2.09
#   BART ensure_weight_tying  ['shared']             memory 0.00 loaded 0.31
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
  torch==2.13.0 transformers==5.23.0 peft==0.21.2
cat > "$folder/run.py" <<'PYTHON'
import tempfile

import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
)


def t5(tied):
    return T5ForConditionalGeneration(T5Config(
        vocab_size=40, d_model=16, d_kv=8, num_heads=2, d_ff=32, num_layers=1,
        decoder_start_token_id=0, tie_word_embeddings=tied,
    ))


def bart(tied):
    return BartForConditionalGeneration(BartConfig(
        vocab_size=40, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32,
        max_position_embeddings=20, pad_token_id=1, bos_token_id=0, eos_token_id=2,
        decoder_start_token_id=2, tie_word_embeddings=tied,
    ))


def logits(model):
    source, target = torch.tensor([[5, 6, 7, 8]]), torch.tensor([[2, 9, 10]])
    with torch.no_grad():
        return model(input_ids=source, decoder_input_ids=target).logits


def differences(model, lora, kept, ensure):
    """Of the merged model in memory, and of the one that was saved and loaded."""
    config = LoraConfig(
        r=2, target_modules=lora, modules_to_save=kept, ensure_weight_tying=ensure
    )
    adapted = get_peft_model(model, config).eval()
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data.add_(torch.randn_like(parameter) * 0.3)
    before = logits(adapted)
    merged = adapted.merge_and_unload()
    in_memory = (logits(merged) - before).abs().max().item()
    with tempfile.TemporaryDirectory() as saved:
        merged.save_pretrained(saved)
        loaded = type(merged).from_pretrained(saved).eval()
    return in_memory, (logits(loaded) - before).abs().max().item()


TIED, NOT_TIED, ENSURED = "tied", "not tied", "ensure_weight_tying"
CASES = [
    ("T5", TIED, ["shared"], True),
    ("T5", TIED, ["lm_head"], False),
    ("T5", TIED, ["shared", "lm_head"], True),
    ("T5", NOT_TIED, ["shared"], True),
    ("BART", TIED, ["shared"], True),
    ("BART", TIED, ["lm_head"], True),
    ("BART", TIED, ["shared", "lm_head"], True),
    ("BART", NOT_TIED, ["shared"], False),
    ("T5", ENSURED, ["shared"], True),
    ("BART", ENSURED, ["shared"], True),
]
for name, how, kept, differs in CASES:
    torch.manual_seed(0)
    build, lora = (t5, ["q", "v"]) if name == "T5" else (bart, ["q_proj", "v_proj"])
    in_memory, loaded = differences(build(how != NOT_TIED), lora, kept, how == ENSURED)
    print(f"{name:4} {how:20} {kept!s:22} memory {in_memory:.2f} loaded {loaded:.2f}")
    assert in_memory < 1e-4, f"the merged model differs by {in_memory}"
    assert (loaded > 0.1) == differs and (differs or loaded < 1e-4), f"loaded: {loaded}"
PYTHON
HF_HUB_OFFLINE=1 "$folder/venv/bin/python" "$folder/run.py" 2>/dev/null
