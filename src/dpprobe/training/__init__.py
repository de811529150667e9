"""Trains cells in jobs, by plans with calibrated noise."""
