"""Writes, reads, records and marks files."""
