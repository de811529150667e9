"""States the privacy cost of choosing a release among the study's cells, in each statement."""
