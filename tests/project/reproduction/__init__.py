"""Tests of the reproduction page."""
