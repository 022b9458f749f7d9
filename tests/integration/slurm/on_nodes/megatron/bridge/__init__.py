"""As much of Megatron Bridge as building a recipe and asking what it means needs: found on nodes alone."""

__version__ = "0.0.1"
