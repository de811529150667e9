"""Audits: lower bounds on epsilon from attacks on heads that were trained for it.

`epsilon_lower_bound` turns scores of runs with and without a canary into an epsilon that the
mechanism exceeds at a stated confidence. Importing this package imports neither NumPy nor SciPy.
"""

from dpprobe.analyses.audit.bounds import epsilon_lower_bound

__all__ = ["epsilon_lower_bound"]
