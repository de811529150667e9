"""Input functions and constants of tables.smk."""


def metric_of(wildcards):
    """Returns what sets a dataset's metric: the study or the catalog."""
    written = config["datasets"].get(wildcards.dataset)
    if not isinstance(written, dict):
        return "the study or the catalog"
    return "the study" if written.get("metric") else "the catalog"
