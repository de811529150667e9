"""Input functions and constants of overlap.smk."""


def removed_counts(wildcards):
    """The description of a dataset that says what was removed from it, where that is done."""
    removed = wildcards.dataset in ALL_ROWS
    return f"<data>/{wildcards.dataset}/dataset.json" if removed else []
