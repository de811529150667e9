"""Predictions from public learning curves: accuracy by images and budget, before any work."""
