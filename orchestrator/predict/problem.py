"""Why a candidate has no prediction."""

from __future__ import annotations


class CannotPredictError(ValueError):
    """A size is missing or does not divide. The message is a sentence for users."""


class CannotRunError(CannotPredictError):
    """What is known of the job does not go together: nothing could run it."""
