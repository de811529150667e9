"""Writes the documents of a release (statement, model card and page), and derives them again."""
