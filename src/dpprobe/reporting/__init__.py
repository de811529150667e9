"""Tables and figures of a study's results, the tables of papers, and the report."""
