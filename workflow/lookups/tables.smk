"""Input functions and constants of tables.smk."""


def metric_of(wildcards):
    """Returns the words for what names a dataset's metric, where one is named."""
    written = config["datasets"].get(wildcards.dataset)
    if not isinstance(written, dict):
        return "the study or the catalog"
    return "the study" if written.get("metric") else "the catalog"
