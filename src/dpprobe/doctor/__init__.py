"""Checks every byte of results and split tables against recorded hashes: `dpprobe doctor`."""
