"""The words that every other package agrees on: stages, causes, labels and units.

Standard library only and Python 3.10, because ranks import it inside a training container.
"""

from orchestrator.vocabulary.causes import Cause, Consequence, consequence_of
from orchestrator.vocabulary.labels import PASS, REJECTED, is_result, label_of
from orchestrator.vocabulary.stages import SETUP_STAGES, Stage

__all__ = [
    "PASS",
    "REJECTED",
    "SETUP_STAGES",
    "Cause",
    "Consequence",
    "Stage",
    "consequence_of",
    "is_result",
    "label_of",
]
