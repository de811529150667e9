"""The job that trains cells, and the calibrated plans it reads."""
