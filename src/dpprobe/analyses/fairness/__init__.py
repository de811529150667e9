"""Subgroups of the test rows compared, not private."""
