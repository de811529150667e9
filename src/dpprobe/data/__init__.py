"""Datasets: from a source to two split tables and their description."""
