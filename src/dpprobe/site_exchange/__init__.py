"""Adds up sums of several sites, so that no site reveals an image or an exact sum."""
