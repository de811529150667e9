"""Every page of the docs is in the site's navigation, and all links have a target."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest

from tests.conftest import REPOSITORY
from tests.support.programs import run_program
from tests.support.script_modules import load_script

# The environment has no mkdocs: `make docs` creates an environment with it.
MKDOCS = REPOSITORY / "build/docs_environment/bin/mkdocs"


@pytest.fixture(scope="module")
def site() -> ModuleType:
    return load_script(REPOSITORY / "docs/site.py")


def test_every_page_has_a_place() -> None:
    nav = re.findall(r": ([\w/.-]+\.md)$", (REPOSITORY / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = {str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "docs").rglob("*.md")}
    assert not pages - set(nav), "add them to the nav of mkdocs.yml"
    assert not [name for name in nav if not (REPOSITORY / name).is_file()]
    assert len(nav) == len(set(nav))
    index = set(re.findall(r"\]\(([\w./-]+\.md)\)", (REPOSITORY / "docs/README.md").read_text()))
    named = {f"docs/{name}" for name in index} | {"docs/README.md"}
    heads = {page for page in pages if page.startswith("docs/methods/")}
    assert pages - heads <= named, "add them to docs/README.md"


def test_the_first_pages_are_short_and_use_no_private_words() -> None:
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    tutorial = (REPOSITORY / "docs/tutorial.md").read_text(encoding="utf-8")
    first = readme.partition("\n## ")[0]
    assert len(re.findall(r"^\| an? ", first, re.MULTILINE)) == 4, "a door for each reader"
    assert first.count("](") <= 12
    assert len(readme.split()) < 900
    private = re.compile(r"\b(cells?|rooms?|exhibits?|told|passports?)\b", re.IGNORECASE)
    assert private.findall(readme + tutorial) == []
    commands = re.search(r"(?m)^    dpprobe init.*\n.*\n.*\n", readme)
    assert commands is not None
    before = readme[: commands.end()]
    assert not re.search(r"\b(budget|ledger|model card)\b", before)


def anchors(page: Path) -> set[str]:
    """Returns the anchors of a page's headings, as code hosts and the site name them."""
    headings = re.findall(r"(?m)^#+ (.+)$", without_code_blocks(page))
    texts = (re.sub(r"[^\w\s-]", "", re.sub(r"\]\([^)]*\)", "", text)) for text in headings)
    return {re.sub(r"\s", "-", text.strip().lower()) for text in texts}


def without_code_blocks(page: Path) -> str:
    return re.sub(r"(?s)```.*?```", "", page.read_text(encoding="utf-8"))


PAGES = [
    *REPOSITORY.glob("*.md"),
    *(page for name in ("bench", "config", "docs") for page in (REPOSITORY / name).rglob("*.md")),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_links_of_a_page_lead_to_a_file_and_a_heading(page: Path) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", without_code_blocks(page)):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if "://" in link or link.startswith("mailto:"):
            continue
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


def test_files_that_pages_link_are_of_the_site(site: ModuleType, tmp_path: Path) -> None:
    for name in site.PAGES:
        (tmp_path / name).write_text("")
    (tmp_path / "README.md").write_text(
        "[a](docs/a.md#b) [away](https://example.org/x.md) [nowhere](none.md) [dots](../x.md)"
    )
    pages = {
        "docs/a.md": "[c](../config/c.yaml)\n![d](images/d.png) [results](../bench/results.md)",
        "bench/results.md": "[e](e.csv)",
        "bench/e.csv": "",
        "bench/unlinked.csv": "",
        "config/c.yaml": "",
        "docs/images/d.png": "",
    }
    for name, text in pages.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert [path.as_posix() for path in site.linked(tmp_path)] == [
        "CHANGELOG.md",
        "CODE_OF_CONDUCT.md",
        "CONTRIBUTING.md",
        "README.md",
        "SECURITY.md",
        "bench/e.csv",
        "bench/results.md",
        "config/c.yaml",
        "docs/a.md",
        "docs/images/d.png",
    ]


def write_small_site(folder: Path, text: str) -> None:
    """Writes the inputs of the site, with few pages; `text` is on the home page."""
    settings, _, _ = (REPOSITORY / "mkdocs.yml").read_text().partition("nav:\n")
    (folder / "mkdocs.yml").write_text(settings)
    (folder / "docs").mkdir()
    module = load_script(REPOSITORY / "docs/site.py")
    for name in ("site.py", module.SCRIPT.name):
        (folder / "docs" / name).write_bytes((REPOSITORY / "docs" / name).read_bytes())
    (folder / "docs/page.md").write_text("# Page\n\n## A part\n")
    for name in module.PAGES:
        (folder / name).write_text(f"# {name}\n")
    (folder / "README.md").write_text(f"# Home\n\n{text}\n")


@pytest.mark.skipif(not MKDOCS.exists(), reason="`make docs` was not run here")
@pytest.mark.parametrize(
    ("link", "builds"),
    [
        ("[x](docs/page.md#a-part)", True),
        ("[x](docs/none.md)", False),
        ("[x](docs/page.md#nowhere)", False),
    ],
)
def test_a_broken_link_fails_the_docs_build(link: str, builds: bool, tmp_path: Path) -> None:
    write_small_site(tmp_path, link)
    done = run_program(
        [MKDOCS.with_name("python"), "-m", "mkdocs", "build"], cwd=tmp_path, check=False
    )
    assert (done.returncode == 0) == builds, done.stderr
    assert builds or "README.md" in done.stderr
