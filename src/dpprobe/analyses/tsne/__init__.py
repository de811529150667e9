"""t-SNE of features, not private."""
