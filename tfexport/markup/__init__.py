"""Texts that are more than one row of a model: sentences, markup, placeholders, files.

Nothing here runs a model. HTML needs turbohtml, and sentences sentencex, which the extra ``markup``
installs.
"""
