"""Parts of a release: one folder each, listed in `dpprobe.release_part_registry`."""
