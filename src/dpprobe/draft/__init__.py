"""Drafts of studies, from a look at a folder or a table of images."""
