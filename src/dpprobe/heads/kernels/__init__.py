"""Compiled code for computations on the CPU outside PyTorch."""
