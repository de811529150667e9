"""Differentially private classifiers on features of frozen foundation models."""

__version__ = "0.1.0"
