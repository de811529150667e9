"""Figures: results against epsilon and options, t-SNE planes and near-duplicates.

The only user of matplotlib. The same input gives the same bytes, so that a figure can be compared
by its hash.
"""
