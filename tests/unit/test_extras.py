"""A missing package of an extra is named in an error, and optional modules are imported late."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import ModuleType

import pytest

from dpprobe import extras
from dpprobe.errors import DataError, MissingExtraError
from dpprobe.extras import EXTRAS, OptionalModule, naming_extras, require_extra
from dpprobe.files.logs import LASTING, job_log
from dpprobe.release.checks import Checks


class Absent:
    """An importer that does not find some packages."""

    def __init__(self, *packages: str) -> None:
        self.packages = packages

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if name.partition(".")[0] in self.packages:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name.partition(".")[0])
        return None


@pytest.fixture
def without_pydicom(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "pydicom"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Absent("pydicom"), *sys.meta_path])
    monkeypatch.setattr(extras, "clone_root", lambda: None)


LINE = 'the package pydicom is not installed; run: pip install "dpprobe[dicom]"'


@pytest.mark.usefixtures("without_pydicom")
def test_a_module_is_imported_at_its_first_use() -> None:
    module = OptionalModule("pydicom")
    assert not hasattr(module, "__wrapped__")  # inspection imports nothing
    with pytest.raises(MissingExtraError) as told:
        _ = module.dcmread
    assert str(told.value) == LINE


def test_a_module_that_is_there_is_the_module() -> None:
    import pyarrow.parquet

    module = OptionalModule("pyarrow.parquet")
    assert module.ParquetFile is pyarrow.parquet.ParquetFile
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = module.Nothing


@pytest.mark.usefixtures("without_pydicom")
def test_a_dicom_file_asks_for_its_extra() -> None:
    from dpprobe.data.images.dicom import MAGIC, PREAMBLE
    from dpprobe.data.images.image_files import open_image

    with pytest.raises(MissingExtraError) as told:
        open_image(bytes(PREAMBLE) + MAGIC)
    assert str(told.value) == LINE


def test_a_missing_package_version_names_the_extra_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(extras, "clone_root", lambda: None)
    with (
        pytest.raises(MissingExtraError, match=r"package PIL .*\"dpprobe\[images\]\""),
        naming_extras(),
    ):
        raise PackageNotFoundError("pillow")


@pytest.mark.parametrize("name", ["numpy", "pydicom.pixels.none", "not_ours"])
def test_other_missing_modules_stay_what_they_are(name: str) -> None:
    """A missing part of an installed package is no missing extra, nor is an unrelated package."""
    error = ModuleNotFoundError(f"No module named {name!r}", name=name)
    with pytest.raises(ModuleNotFoundError) as told, naming_extras():
        raise error
    assert told.value is error


def test_a_clone_is_installed_again_with_the_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(extras, "clone_root", lambda: tmp_path)
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "mlflow" else name)
    with pytest.raises(MissingExtraError) as told:
        require_extra("workflow", "dpprobe run")
    assert str(told.value) == (
        "dpprobe run: the package mlflow is not installed; run: pip install "
        f'--editable "{tmp_path}[workflow]"'
    )
    require_extra("dicom", "DICOM")


def test_every_extra_is_there_in_this_environment() -> None:
    for extra in EXTRAS:
        require_extra(extra, "tests")


@pytest.mark.usefixtures("without_pydicom")
def test_a_job_logs_one_line_and_is_not_tried_again(tmp_path: Path) -> None:
    with pytest.raises(SystemExit), job_log(tmp_path / "job.log"):
        import pydicom  # noqa: F401
    first, last = (tmp_path / "job.log").read_text().splitlines()
    assert first.endswith(f" ERROR {LINE}")
    assert last == LASTING


@pytest.mark.usefixtures("without_pydicom")
def test_a_check_without_its_package_is_open_and_a_failed_one_fails() -> None:
    def look() -> tuple[str, bool]:
        import pydicom  # noqa: F401

        return "seen", True

    def fail() -> tuple[str, bool]:
        raise DataError("damaged")

    checks = Checks()
    assert checks.run_check("first", look) is None
    assert checks.run_check("second", fail) is None
    assert [(one.passed, one.detail) for one in checks.done] == [(None, LINE), (False, "damaged")]
