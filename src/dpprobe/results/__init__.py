"""A cell's record, metrics, summaries and the best private result. Imports no torch."""
