"""Subgroups: metrics of each, gaps between them, and how far chance explains them. Not private."""
