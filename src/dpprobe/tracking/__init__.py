"""MLflow: the only room that imports it."""
