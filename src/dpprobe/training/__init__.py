"""The job that trains cells, and the calibrated plans that the job reads."""
