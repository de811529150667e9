"""Checks a bundle as any person who received it can."""
