"""Input functions and constants of calibration.smk."""


def methods_params(epsilon):
    """The options of the methods that train at an epsilon."""
    return {name: dumped(STUDY.methods[name]) for name in STUDY.job_methods(epsilon)}


def calibration_params(wildcards):
    """The options of privacy; a delta above 1/n is named only if allowed, so that other studies keep their plans."""
    allowed = STUDY.allows_delta_above(wildcards.dataset)
    return privacy_params(wildcards) | (
        {"allow_delta_above_one_over_n": True} if allowed else {}
    )
