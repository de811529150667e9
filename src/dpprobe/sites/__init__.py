"""Sums that several sites add up, so that no site shows an image or an exact sum."""
