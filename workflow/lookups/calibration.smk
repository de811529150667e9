"""Input functions and constants of calibration.smk."""


def methods_params(epsilon):
    """The options of all methods that train at an epsilon."""
    return {name: dumped(STUDY.methods[name]) for name in STUDY.job_methods(epsilon)}


def calibration_params(wildcards):
    """The privacy options; `allow_delta_above_one_over_n` only if True, so that plans without it stay up to date."""
    allowed = STUDY.allows_delta_above(wildcards.dataset)
    return privacy_params(wildcards) | (
        {"allow_delta_above_one_over_n": True} if allowed else {}
    )
