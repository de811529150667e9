"""Linear probes on a few images per class, not private."""
