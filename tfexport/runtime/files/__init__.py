"""Decoding of files of lines."""
