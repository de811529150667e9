"""What a cell is: its record, metrics, summaries and the best private result. Imports no torch."""
