"""Modules per source of data: its options, and how its files become rows of split tables."""
