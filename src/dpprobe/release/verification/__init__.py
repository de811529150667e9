"""Verifies a bundle with only the means of a person who received the bundle."""
