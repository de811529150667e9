"""Converts a source of data into two split tables and a description."""
