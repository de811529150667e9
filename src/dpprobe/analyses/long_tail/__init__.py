"""Sub-classes and memorisation of features, not private."""
