"""Input functions and constants of audit.smk."""

AUDITED_CELLS = audit_cells(STUDY)


def audited_methods(epsilon=None, *, private=False):
    """The audited methods at one epsilon, or at all epsilons with a guarantee."""
    at = [
        cell.method
        for cell in AUDITED_CELLS
        if cell.epsilon == epsilon or (private and cell.epsilon != INFINITE)
    ]
    return list(dict.fromkeys(at))


def audit_files(dataset):
    records = [
        str(audit_path(f"<results>/{AUDITS}", cell, suffix))
        for cell in AUDITED_CELLS
        if cell.dataset == dataset
        for suffix in AUDIT_SUFFIXES
    ]
    return [*records, *list_audit_marks(FILES, dataset)]
