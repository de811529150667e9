"""Analyses of features: t-SNE."""
