"""Checkpoints as toolkits write them: their names of tensors and options, with drawn weights."""
