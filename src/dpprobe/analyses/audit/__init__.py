"""Audits: lower bounds on epsilon from attacks on heads that were trained for it.

`epsilon_lower_bound` turns scores of runs with and without a canary into an epsilon that the
mechanism exceeds at a stated confidence. Importing this package imports neither NumPy nor SciPy.
"""

from __future__ import annotations

from dpprobe.analyses.analysis import Analysis
from dpprobe.analyses.audit.audited_cells import audit_cells, audit_faults
from dpprobe.analyses.audit.bounds import epsilon_lower_bound
from dpprobe.analyses.audit.options import AuditOptions

__all__ = ["ANALYSIS", "epsilon_lower_bound"]

ANALYSIS = Analysis(
    name="audit",
    describe=(
        "Test the promise of each cell by attacks on heads that are trained for it; not "
        "done where absent."
    ),
    reads=(
        "Membership attacks",
        "they score real training rows, without noise; audits with synthetic canaries use none.",
    ),
    options=AuditOptions,
    faults=audit_faults,
    datasets=lambda study: list(study.datasets) if audit_cells(study) else [],
)
