"""Checkpoints: safe load, then layout, then (config, weights in the model's own names)."""
