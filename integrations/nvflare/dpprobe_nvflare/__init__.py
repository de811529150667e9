"""Carries the files of `dpprobe site` between sites; it adds nothing to them and reads nothing."""
