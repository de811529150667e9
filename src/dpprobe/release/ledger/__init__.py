"""Records a dataset's releases in a ledger, with their units and their total privacy cost."""
