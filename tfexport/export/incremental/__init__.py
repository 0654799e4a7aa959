"""Encoder, memory, cache and step of a module that has ``forward(*inputs, target)`` alone."""
