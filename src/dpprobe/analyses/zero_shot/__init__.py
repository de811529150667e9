"""Classifiers from the class names alone, not private."""
