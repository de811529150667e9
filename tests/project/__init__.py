"""Tests of the checkout itself: its structure, environment and pages."""
