"""Bundle to tokens to text: numpy and onnxruntime, never torch."""

from tfexport.runtime.options import DecodingOptions
from tfexport.runtime.results import Hypothesis, TranslationResult
from tfexport.runtime.translator import Translator

__all__ = ["DecodingOptions", "Hypothesis", "TranslationResult", "Translator"]
