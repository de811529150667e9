"""A cell's record, metrics, summaries and the best private result. Nothing here imports torch."""
