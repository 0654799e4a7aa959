"""Tokenizers of Hugging Face folders."""
