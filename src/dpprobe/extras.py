"""Optional packages: the extra that installs each package, and the error if one is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from dpprobe.errors import MissingExtraError
from dpprobe.project_files import clone_root

# The import names of optional packages, by the extra of pyproject.toml that installs them. All
# other packages belong to the core.
EXTRAS = {
    "images": (
        "PIL", "huggingface_hub", "kymatio", "open_clip", "pillow_heif", "pyarrow", "timm",
        "torchvision",
    ),
    "dicom": ("pydicom",),
    "onnx": ("onnx", "onnxruntime", "onnxscript"),
    "tracking": ("mlflow", "requests", "sqlalchemy"),
    "postgres": ("psycopg2",),
    "workflow": (
        "snakemake", "snakemake_executor_plugin_cluster_generic", "h5py", "matplotlib", "openTSNE",
        "optuna", "pandas", "tenacity", "urllib3",
    ),
}  # fmt: skip
# The extras that each extra includes, as in pyproject.toml.
BRINGS = {"dicom": ("images",), "postgres": ("tracking",), "workflow": ("images", "tracking")}

_DISTRIBUTIONS = {"open_clip_torch": "open_clip", "pillow": "PIL"}


def require_extra(extra: str, purpose: str) -> None:
    """Raises MissingExtraError, with the command to type, if a package of `extra` is missing.

    `purpose` is the feature that needs the extra, such as "dpprobe run".
    """
    for part in (extra, *BRINGS.get(extra, ())):
        for package in EXTRAS[part]:
            if find_spec(package) is None:
                raise MissingExtraError(f"{purpose}: {_describe_missing(package, extra)}")


@contextmanager
def naming_extras() -> Iterator[None]:
    """Raises MissingExtraError, with the command to type, if an optional package is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        name = _DISTRIBUTIONS.get(str(error.name), error.name)  # the error may be of `version`
        for extra, packages in EXTRAS.items():
            if name in packages:
                raise MissingExtraError(_describe_missing(name, extra)) from error
        raise


def _describe_missing(package: str, extra: str) -> str:
    root = clone_root()
    what = f'"dpprobe[{extra}]"' if root is None else f'--editable "{root}[{extra}]"'
    return f"the package {package} is not installed; run: pip install {what}"


class OptionalModule(ModuleType):
    """Stands for a module of an optional package, which is imported at the first use.

    The first use raises MissingExtraError, with the command to type, if the package is missing.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # inspecting a module's names must not import it
            raise AttributeError(name)
        with naming_extras():
            module = import_module(self.__name__)
        return getattr(module, name)
