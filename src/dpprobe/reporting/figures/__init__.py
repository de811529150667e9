"""Figures: results against epsilon and options, t-SNE planes and near-duplicates.

The only user of matplotlib. Equal input gives equal bytes, so hashes suffice to compare figures.
"""
