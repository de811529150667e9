"""Differentially private classifiers on features of frozen foundation models."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    __version__: str
else:

    def __getattr__(name):
        """Computes `__version__` when it is asked for: in a clone that is a call of git."""
        if name == "__version__":
            from dpprobe.versions import code_version  # not for every import of dpprobe

            return code_version()
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
