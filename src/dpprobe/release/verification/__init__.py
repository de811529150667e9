"""Verifies a bundle with the means of any person who received the bundle."""
