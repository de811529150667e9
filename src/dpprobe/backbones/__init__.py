"""Frozen feature extractors: a name in the study -> a model with its own preprocessing."""
