"""The installed wheel has all files of the workflow, and `dpprobe run` finds them."""

from __future__ import annotations

import json
import os
import re
import shutil
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterable, Mapping
from email import message_from_bytes
from importlib.metadata import distribution
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dpprobe.project_files import SHIPPED
from tests.conftest import REPOSITORY
from tests.support.programs import run_program
from tests.support.stored_releases import unpack_release
from tests.support.warm_python import asking, serving
from tests.support.wheels import TIMEOUT, build, copy_machine_code, install
from tests.workflow.conftest import SMALL

pytestmark = pytest.mark.slow

SHIPPED_FOLDERS = ("config", "envs", "profiles", "resources", "scripts", "workflow")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(REPOSITORY, "wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def scripts(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the scripts of an environment that has the wheel and sees this one's packages."""
    return install(wheel, tmp_path_factory.mktemp("installed") / "venv")


@pytest.fixture(scope="module")
def core(scripts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the scripts of an environment with only the wheel and its core packages."""
    folder = tmp_path_factory.mktemp("core") / "venv"
    shutil.copytree(scripts.parent, folder, symlinks=True)
    for path in (folder / "bin").glob("*"):
        if not path.is_symlink() and path.read_bytes().startswith(b"#!"):
            path.write_text(path.read_text().replace(str(scripts.parent), str(folder)))
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "environment.pth").unlink()
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    for name in required_packages(project["dependencies"]):
        for file in distribution(name).files or ():
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not (site / top).exists():
                (site / top).symlink_to(str(distribution(name).locate_file(top)))
    return folder / "bin"


def required_packages(lines: Iterable[str]) -> set[str]:
    """Returns the installed packages that these requirements need, directly or indirectly."""
    found: set[str] = set()
    waiting = [Requirement(line) for line in lines]
    while waiting:
        name = canonicalize_name(waiting.pop().name)
        if name not in found:
            found.add(name)
            asked = map(Requirement, distribution(name).requires or ())
            waiting += [
                one for one in asked if not one.marker or one.marker.evaluate({"extra": ""})
            ]
    return found


def version_of(wheel: Path) -> str:
    return wheel.name.split("-")[1]


# variables that do not refer to this clone
OF_CLONE = {"PYTHONPATH", "SNAKEMAKE_PROFILE"}
VARIABLES = {name: value for name, value in os.environ.items() if name not in OF_CLONE}


@pytest.fixture(scope="module", autouse=True)
def _machine_code(tmp_path_factory: pytest.TempPathFactory) -> None:
    VARIABLES.update(copy_machine_code(tmp_path_factory.mktemp("machine_code")))


def call(*command: str | Path, here: Path, variables: Mapping[str, str] = VARIABLES) -> str:
    """Runs a command of the installed package."""
    done = run_program(command, cwd=here, env=variables, timeout=TIMEOUT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_wheel_contains_every_file_of_the_workflow(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {item.filename: item.external_attr >> 16 for item in archive.infolist()}
    wanted = {
        path.relative_to(REPOSITORY).as_posix(): os.access(path, os.X_OK)
        for folder in SHIPPED_FOLDERS
        for path in (REPOSITORY / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    wanted |= dict.fromkeys(("Snakefile", "config.yaml"), False)
    prefix = f"dpprobe/{SHIPPED}/"
    assert not [name for name in wanted if prefix + name not in held]
    # the profile's commands are executable files
    assert not [name for name, runs in wanted.items() if runs and not held[prefix + name] & 0o111]
    assert {"dpprobe/__init__.py", "snakemake_logger_plugin_dpprobe/__init__.py"} <= held.keys()
    assert not [name for name in held if "__pycache__" in name or "/tests/" in name]


def test_the_wheel_asks_for_what_the_environment_is_made_of(wheel: Path) -> None:
    """Each list of pyproject.toml equals a section of the requirements that the lock resolves."""
    listed = (REPOSITORY / "requirements/runtime.in").read_text().partition("# installation")[0]
    sections = {
        name: rows.split() for name, rows in re.findall(r"^# (\w+)\n((?:[^#\n]+\n)+)", listed, re.M)
    }
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = {
        name: [line for line in lines if not line.startswith("dpprobe[")]
        for name, lines in project["optional-dependencies"].items()
    }
    assert extras.pop("all") == []
    assert sections == {"core": project["dependencies"], **extras}
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = message_from_bytes(archive.read(name))
    asked = metadata.get_all("Requires-Dist", [])
    assert len([each for each in asked if "extra ==" not in each]) == len(sections["core"])
    assert set(metadata.get_all("Provides-Extra", [])) == {*extras, "all"}


def test_a_source_distribution_makes_the_same_wheel_without_git(tmp_path: Path) -> None:
    source = build(REPOSITORY, "sdist", tmp_path / "sdist")
    with tarfile.open(source) as archive:
        archive.extractall(tmp_path, filter="data")
    (folder,) = (path.parent for path in tmp_path.glob("dpprobe-*/pyproject.toml"))
    again = build(folder, "wheel", tmp_path / "again")
    assert again.name.removesuffix("-py3-none-any.whl") == folder.name
    with zipfile.ZipFile(again) as archive:
        assert f"dpprobe/{SHIPPED}/Snakefile" in archive.namelist()


def test_an_installed_wheel_finds_its_version_and_resource_files(
    wheel: Path, scripts: Path, tmp_path: Path
) -> None:
    code = (
        "import dpprobe, json; from dpprobe import code_version, project_files;"
        "print(json.dumps([dpprobe.__version__, code_version.clone_commit(),"
        "str(project_files.project_root()), project_files.resource_path('catalog').is_dir()]))"
    )
    version, commit, root, catalog = json.loads(call(scripts / "python", "-c", code, here=tmp_path))
    assert version == version_of(wheel)
    assert commit is None
    assert Path(root).is_relative_to(scripts.parent)
    assert Path(root).name == SHIPPED
    assert catalog
    assert "cifar10" in call(scripts / "dpprobe", "catalog", here=tmp_path)


def test_an_empty_folder_is_enough_to_plan(scripts: Path, tmp_path: Path) -> None:
    said = call(scripts / "dpprobe", "run", "-n", here=tmp_path)
    jobs = dict(line.split()[:2] for line in said.splitlines() if len(line.split()) == 2)
    assert (jobs["train_heads"], jobs["extract_features"]) == ("10", "4")
    assert [path.name for path in tmp_path.iterdir()] == [".snakemake"]
    audits = ("audits", "--configfile", "config/audit.yaml")
    assert "audit" in call(scripts / "dpprobe", "run", "-n", *audits, here=tmp_path)


def test_an_environment_of_snakemake_gets_it(wheel: Path, scripts: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "conda", with_pip=False)
    python = tmp_path / "conda/bin/python"
    code = "from dpprobe import project_files; print(project_files.project_root())"
    root = call(scripts / "python", "-c", code, here=tmp_path).strip()
    variables = {"PATH": f"{python.parent}:{os.environ['PATH']}", "DPPROBE_ROOT": root}
    call("bash", f"{root}/envs/training.post-deploy.sh", here=tmp_path, variables=variables)
    code = "import dpprobe; print(dpprobe.__version__, dpprobe.__file__)"
    version, place = call(python, "-c", code, here=tmp_path).split()
    assert version == version_of(wheel)
    assert Path(place).is_relative_to(tmp_path / "conda")


def test_the_quickstart_runs_as_printed_and_its_release_is_used_elsewhere(
    scripts: Path, tmp_path: Path
) -> None:
    """Runs the first block of docs/python.md and its block that saves, then the two commands."""
    page = (REPOSITORY / "docs/python.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    (saving,) = (block for block in blocks if ".save_bundle(" in block)
    (tmp_path / "here").mkdir()
    (tmp_path / "here/quickstart.py").write_text(
        f"{blocks[0]}{saving}import numpy\nnumpy.save('vectors.npy', X_test)\n"
    )
    call(scripts / "python", "quickstart.py", here=tmp_path / "here")
    there = tmp_path / "there"
    shutil.copytree(tmp_path / "here/releases", there / "releases")
    shutil.copy(tmp_path / "here/vectors.npy", there)
    verify, predict = "verify releases/digits_v1", "predict releases/digits_v1 vectors.npy"
    assert all(f"dpprobe {each}" in " ".join(page.split()) for each in (verify, predict))
    said = call(scripts / "dpprobe", *verify.split(), here=there)
    assert said.startswith("verified: ")
    table = call(scripts / "dpprobe", *predict.split(), here=there)
    assert len(re.findall(r"^vectors\.npy:\d+,.*,digits_v1,", table, re.MULTILINE)) == 450


def test_the_notebook_keeps_the_installed_torch(wheel: Path, tmp_path: Path) -> None:
    """The environment has all other packages, like Colab; pip gets wheels from a folder."""
    venv.create(tmp_path / "venv", with_pip=False)
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if "dpprobe" not in path.name:
            (site / path.name).symlink_to(path)
    book = json.loads((REPOSITORY / "docs/notebooks/quickstart.ipynb").read_text())
    cells = ["".join(cell["source"]) for cell in book["cells"] if cell["cell_type"] == "code"]
    printed = "print(report.passed, len(predictor.predict_vectors(X_test)), dpprobe.__file__)"
    (tmp_path / "notebook.py").write_text("\n".join([*cells, printed]))
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheel.parent), "MPLBACKEND": "Agg"}
    python = tmp_path / "venv/bin/python"
    said = call(python, "notebook.py", here=tmp_path, variables=VARIABLES | offline)
    passed, rows, place = said.split("\n")[-2].split()
    assert (passed, rows) == ("True", "450")
    assert Path(place).is_relative_to(site)


# Fits, publishes and runs commands; the last line lists their results and the installed EXTRAS.
CORE_USE = """
import importlib.util, json, sys
import numpy as np
import dpprobe
from dpprobe.__main__ import main
from dpprobe.extras import EXTRAS
centres = np.eye(3, 8)[np.arange(300) % 3]
X = centres + 0.1 * np.random.default_rng(0).standard_normal(centres.shape)
budget = dpprobe.Budget(max_epsilon=8, delta=1e-5)
head = dpprobe.PrivateClassifier(epsilon=8, classes=range(3), budget=budget, head="least_squares")
head.fit(X, np.arange(300) % 3)
head.save_bundle(
    "releases/blobs_v1", dataset="blobs", model="blobs", each_by_itself=True, pretrained=False
)
np.save("vectors.npy", np.eye(3, 8))
ended = []
for command in sys.argv[1:]:
    sys.argv = ["dpprobe", *command.split()]
    try:
        main()
    except SystemExit as end:
        ended.append(end.code)
there = [each for names in EXTRAS.values() for each in names if importlib.util.find_spec(each)]
print(json.dumps([ended, there]))
"""
COMMANDS = ("verify releases/blobs_v1", "predict releases/blobs_v1 vectors.npy")
IMAGES = "images/clinic_v1"
# The error for a missing package names the package and the extra that installs it.
DOORS = {
    "run -n": ("dpprobe run: the package snakemake", "workflow"),
    "init .": ("dpprobe init: the package snakemake", "workflow"),
    "check study.yaml": ("dpprobe check: the package snakemake", "workflow"),
    "rollback releases/blobs_v1": ("the package mlflow", "tracking"),
    "export releases/blobs_v1 --onnx head.onnx": ("the package onnx", "onnx"),
    "predict releases/blobs_v1 vectors.npy --output o.parquet": ("the package pyarrow", "images"),
    f"predict {IMAGES} {IMAGES}/README.md": ("the package PIL", "images"),
}


def test_the_core_works_and_names_missing_extras(core: Path, tmp_path: Path) -> None:
    unpack_release(tmp_path / "images", "images")
    said = call(core / "python", "-c", CORE_USE, *COMMANDS, *DOORS, here=tmp_path)
    (ended, there), _ = json.JSONDecoder().raw_decode(said, said.index("[[0, 0,"))
    assert there == []
    assert "verified: " in said
    assert "NOT verified" not in said
    assert len(re.findall(r"^vectors\.npy:\d+,[012],", said, re.MULTILINE)) == 3
    assert ended == [0, 0] + [
        f'dpprobe: {missing} is not installed; run: pip install "dpprobe[{extra}]"'
        for missing, extra in DOORS.values()
    ]


def test_the_core_verifies_the_public_release(core: Path) -> None:
    command = "dpprobe verify examples/chest_xray_v1"
    assert command in (REPOSITORY / "docs/verify.md").read_text()
    assert call(core / "dpprobe", *command.split()[1:], here=REPOSITORY).startswith("verified: ")


# Prints the process that `dpprobe run` becomes.
BECOMES = """
import json, os, sys
os.execve = lambda path, command, variables: sys.exit(json.dumps([command, dict(variables)]))
from dpprobe.study.run_command import start_snakemake
start_snakemake(sys.argv[1:])
"""


@pytest.mark.slow
def test_a_study_runs_from_any_folder(scripts: Path, wheel: Path, tmp_path: Path) -> None:
    """Runs all rules of the default study, with fewer cells.

    Its processes are forked from a Python of this environment that has imported libraries.
    """
    python = scripts / "python"
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(SMALL))
    asked = run_program(
        [python, "-c", BECOMES, "--configfile", "study.yaml"],
        cwd=tmp_path,
        env=VARIABLES,
        timeout=TIMEOUT,
        check=False,
    )
    (first, *words), variables = json.loads(asked.stderr)
    assert first == str(python)
    with serving(first, VARIABLES) as socket:
        command = asking(socket, *words)
        call(*command, here=tmp_path, variables=variables)
        left = {path.name for path in tmp_path.iterdir()}
        assert left == {".snakemake", "data", "results", "study.yaml"}
        report = (tmp_path / "results/report.html").read_text()
        # the command that makes the study again, without a clone
        assert "dpprobe run --cores all --configfile study.yaml" in report
        assert "not a git checkout" in report
        assert version_of(wheel) in report
        assert str(REPOSITORY) not in report
        made = (tmp_path / "results/report.html").stat().st_mtime_ns
        call(*command, here=tmp_path, variables=variables)
        assert (tmp_path / "results/report.html").stat().st_mtime_ns == made
