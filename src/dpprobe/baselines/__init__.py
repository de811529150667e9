"""Classifiers to compare with, not private: zero-shot and few-shot."""
