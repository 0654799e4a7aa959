"""Quantisation of a bundle, with a check of quality; no torch."""
