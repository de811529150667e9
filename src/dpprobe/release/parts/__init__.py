"""The parts of a release, one folder per part; `dpprobe.release_part_registry` lists them."""
