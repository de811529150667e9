"""Checks a bundle as whoever was handed it can."""
