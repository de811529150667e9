"""Records, metrics and summaries of cells, and best private results; does not import torch."""
