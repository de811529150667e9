"""Frozen feature extractors, each with its own preprocessing, by their names in a study."""
