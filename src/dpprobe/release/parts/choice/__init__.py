"""The privacy cost of choosing a release among the study's cells, which each statement has."""
