"""Differentially private classifiers on features of frozen foundation models.

The names in `__all__` are the public Python API, imported at first use, so that `import dpprobe`
is fast. docs/python.md has the stability policy. All names outside `__all__` are internal.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpprobe.estimator.budget import Budget as Budget
    from dpprobe.estimator.private_classifier import PrivateClassifier as PrivateClassifier
    from dpprobe.estimator.public_functions import audit as audit
    from dpprobe.estimator.public_functions import calibrate as calibrate
    from dpprobe.estimator.public_functions import epsilon_of as epsilon_of
    from dpprobe.estimator.public_functions import plan_accuracy as plan_accuracy
    from dpprobe.estimator.public_functions import read_cells as read_cells
    from dpprobe.estimator.public_functions import read_features as read_features
    from dpprobe.estimator.public_functions import verify as verify
    from dpprobe.release.predict import Predictor as Predictor

    __version__: str

_PLACES = {
    "Budget": "dpprobe.estimator.budget",
    "Predictor": "dpprobe.release.predict",
    "PrivateClassifier": "dpprobe.estimator.private_classifier",
    **dict.fromkeys(
        (
            "audit",
            "calibrate",
            "epsilon_of",
            "plan_accuracy",
            "read_cells",
            "read_features",
            "verify",
        ),
        "dpprobe.estimator.public_functions",
    ),
}

__all__ = [*_PLACES]


def __getattr__(name: str) -> object:
    """Imports a public name, or computes `__version__`, which calls git in a clone."""
    if name == "__version__":
        from dpprobe.code_version import code_version  # late, because few users ask for the version

        return code_version()
    if name in _PLACES:
        value = getattr(import_module(_PLACES[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    dunder = (name for name in globals() if name.startswith("__"))
    return sorted({*dunder, *__all__, "__version__"})
