"""Figures: results against epsilon and options, t-SNE planes and near-duplicates.

Equal input gives figures with equal bytes, so hashes suffice to compare figures.
"""
