"""Tokenizers of Hugging Face folders, made of the files that each family has."""
