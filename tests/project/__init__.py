"""Tests of the repository: its structure, environment and documentation pages."""
