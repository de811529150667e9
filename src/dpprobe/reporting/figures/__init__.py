"""Figures: results against epsilon and options, t-SNE plots and near-duplicates.

Equal input gives figures with equal bytes, so hashes suffice to compare figures.
"""
