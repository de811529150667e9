"""Drafts a study from a folder or a table of images."""
