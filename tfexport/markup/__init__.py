"""Texts that are more than one row of a model: sentences, markup, placeholders, files.

It needs turbohtml (for HTML) and sentencex, which the extra ``markup`` installs.
"""

from tfexport.errors import missing_dependency

try:
    import sentencex as _sentencex  # noqa: F401
except ImportError:
    raise missing_dependency("markup needs sentencex", extra="markup") from None

from tfexport.markup.document import Markup as Markup
from tfexport.markup.placeholders import Placeholders as Placeholders
from tfexport.markup.tokens import TagRules as TagRules
from tfexport.markup.translate import translate_markup as translate_markup
