"""Transformers in the styles of public repositories, on which recognition is judged."""

from tests.export.recognition.styles.annotated_kin import ANNOTATED_KIN
from tests.export.recognition.styles.d2l_kin import D2L_KIN
from tests.export.recognition.styles.huang_kin import HUANG_KIN
from tests.export.recognition.styles.jamil_kin import JAMIL_KIN
from tests.export.recognition.styles.mutations import Mutation, drawn_mutations, mutations
from tests.export.recognition.styles.other_kin import OTHER_KIN
from tests.export.recognition.styles.own_kin import OWN_KIN
from tests.export.recognition.styles.relative_kin import RELATIVE_KIN
from tests.export.recognition.styles.sequence_first import SEQUENCE_FIRST
from tests.export.recognition.styles.stock_kin import STOCK_KIN
from tests.export.recognition.styles.style import DECODER, RECOGNISED, Style
from tests.export.recognition.styles.torchtune_kin import TORCHTUNE_KIN
from tests.export.recognition.styles.trevett_kin import TREVETT_KIN
from tests.export.recognition.styles.xtransformers_kin import X_TRANSFORMERS_KIN

STYLES = (
    *ANNOTATED_KIN,
    *JAMIL_KIN,
    *STOCK_KIN,
    *TREVETT_KIN,
    *HUANG_KIN,
    *SEQUENCE_FIRST,
    *D2L_KIN,
    *X_TRANSFORMERS_KIN,
    *TORCHTUNE_KIN,
    *RELATIVE_KIN,
    *OWN_KIN,
    *OTHER_KIN,
)

__all__ = ["DECODER", "RECOGNISED", "STYLES", "Mutation", "Style", "drawn_mutations", "mutations"]
