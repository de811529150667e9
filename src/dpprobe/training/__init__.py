"""The job that trains cells, and the plans that the job reads, with calibrated noise."""
