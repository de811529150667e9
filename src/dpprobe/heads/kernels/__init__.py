"""Compiled code: what a CPU computes outside PyTorch."""
