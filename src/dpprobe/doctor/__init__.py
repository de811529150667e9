"""Compares every byte of results and split tables with recorded hashes: `dpprobe doctor`."""
