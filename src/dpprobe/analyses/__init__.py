"""Analyses of features, cells or networks, one subpackage each."""
