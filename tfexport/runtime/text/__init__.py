"""Tokenizers, and text to ids and back."""
