"""Identifies rows of the same person, and keeps each person in one split."""
