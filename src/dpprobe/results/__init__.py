"""A cell's record, metrics, summaries and the best private result, without importing torch."""
