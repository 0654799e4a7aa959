"""Transformers in the styles of public repositories, on which recognition is judged."""

from tests.export.recognition.styles.annotated_kin import ANNOTATED_KIN
from tests.export.recognition.styles.jamil_kin import JAMIL_KIN
from tests.export.recognition.styles.mutations import Mutation, drawn_mutations, mutations
from tests.export.recognition.styles.style import RECOGNISED, Style

STYLES = (*ANNOTATED_KIN, *JAMIL_KIN)

__all__ = ["RECOGNISED", "STYLES", "Mutation", "Style", "drawn_mutations", "mutations"]
