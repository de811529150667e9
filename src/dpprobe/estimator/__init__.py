"""Private heads on arrays: the scikit-learn estimator, its budget, and functions for notebooks."""
