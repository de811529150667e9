"""Aliases of a release's model: a successor is released, a rollback is final until it is undone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dpprobe.errors import DataError, TrackingError
from dpprobe.tracking.release_aliases import DIGEST, PREDECESSOR, RELEASE, ReleaseModel, roll_back
from tests.support.bundles import write_example
from tests.support.tracked_study import Study
from tests.unit.tracking.test_release_registry import MODEL, register


class Registry:
    """A registered model in memory; `crash_at` is the number of the change that fails."""

    def __init__(self) -> None:
        self.aliases: dict[str, str] = {}
        self.versions: list[Any] = []
        self.crash_at = 0

    def add(self, digest: str, predecessor: str | None = None) -> None:
        """Registers a bundle, as `register_release` does."""
        tags = {DIGEST: digest, RELEASE: digest}
        tags |= {PREDECESSOR: predecessor} if predecessor else {}
        self.versions.append(SimpleNamespace(version=len(self.versions) + 1, tags=tags))
        self.track(digest)

    def track(self, digest: str) -> None:
        """Tracks a registered bundle again."""
        model = self.model()
        model.release(next(each for each in model.versions if each.tags.get(DIGEST) == digest))

    def model(self) -> ReleaseModel:
        return ReleaseModel.read(self, MODEL)  # type: ignore[arg-type]

    def roll_back(self, digest: str, *, undo: bool = False) -> str:
        return self.model().roll_back(digest, undo=undo)

    # MLflow's client

    def search_model_versions(self, _condition: str, **_page: Any) -> Any:
        class Page(list[Any]):
            token = None

        return Page(reversed(self.versions))

    def get_registered_model(self, _name: str) -> Any:
        return SimpleNamespace(aliases=dict(self.aliases))

    def set_registered_model_alias(self, _name: str, alias: str, version: Any) -> None:
        self._count_change()
        self.aliases[alias] = str(version)

    def delete_registered_model_alias(self, _name: str, alias: str) -> None:
        self._count_change()
        del self.aliases[alias]

    def set_model_version_tag(self, _name: str, version: str, key: str, value: str) -> None:
        self._count_change()
        self.versions[int(version) - 1].tags[key] = value

    def delete_model_version_tag(self, _name: str, version: str, key: str) -> None:
        self._count_change()
        del self.versions[int(version) - 1].tags[key]

    def _count_change(self) -> None:
        self.crash_at -= 1
        if self.crash_at == 0:
            raise KeyboardInterrupt


@pytest.fixture
def registry() -> Registry:
    """Three releases, each of which replaces the one before."""
    made = Registry()
    for digest, predecessor in (("a", None), ("b", "a"), ("c", "b")):
        made.add(digest, predecessor)
    return made


def test_the_newest_is_released_whatever_is_tracked_again(registry: Registry) -> None:
    for digest in "bacab":
        registry.track(digest)
        assert registry.aliases == {"released": "3", "previous": "2"}


def test_a_bundle_without_predecessor_is_released_without_previous(registry: Registry) -> None:
    registry.add("another")
    assert registry.aliases == {"released": "4"}


def test_a_rollback_stays_until_it_is_undone(registry: Registry) -> None:
    for _ in range(2):
        said = registry.roll_back("c")
        assert said == f"{MODEL}@released: version 2, b\n{MODEL}@previous: version 1, a"
    for digest in "cba":
        registry.track(digest)
        assert registry.aliases == {"released": "2", "previous": "1"}
    for _ in range(2):
        registry.roll_back("c", undo=True)
        assert registry.aliases == {"released": "3", "previous": "2"}
    registry.track("b")
    assert registry.aliases == {"released": "3", "previous": "2"}


def test_two_rollbacks_lead_to_the_first_and_a_newer_release_is_released(
    registry: Registry,
) -> None:
    registry.roll_back("c")
    registry.roll_back("b")
    assert registry.aliases == {"released": "1"}
    registry.add("d", "c")
    assert registry.aliases == {"released": "4", "previous": "1"}
    registry.roll_back("d")
    registry.roll_back("b", undo=True)
    assert registry.aliases == {"released": "2", "previous": "1"}


def test_a_release_that_others_replaced_is_skipped_once_rolled_back(registry: Registry) -> None:
    registry.roll_back("b")
    assert registry.aliases == {"released": "3", "previous": "1"}
    registry.roll_back("b", undo=True)
    assert registry.aliases == {"released": "3", "previous": "2"}


@pytest.mark.parametrize("undo", [False, True])
@pytest.mark.parametrize("change", [1, 2, 3])
def test_a_crash_at_any_change_is_mended(registry: Registry, change: int, undo: bool) -> None:
    if undo:
        registry.roll_back("c")
    registry.crash_at = change
    with pytest.raises(KeyboardInterrupt):
        registry.roll_back("c", undo=undo)
    registry.roll_back("c", undo=undo)
    registry.track("c")
    expected = {"released": "3", "previous": "2"} if undo else {"released": "2", "previous": "1"}
    assert registry.aliases == expected


def test_the_first_release_has_nothing_to_go_back_to(registry: Registry) -> None:
    with pytest.raises(TrackingError, match=f"{MODEL}, version 1: MLflow has no predecessor"):
        registry.roll_back("a")
    with pytest.raises(TrackingError, match="no version of this bundle"):
        registry.roll_back("unknown")
    assert registry.aliases == {"released": "3", "previous": "2"}


def test_versions_of_people_and_a_model_without_aliases_are_left_alone(registry: Registry) -> None:
    registry.versions.append(SimpleNamespace(version=9, tags={PREDECESSOR: "a"}))
    registry.roll_back("c")
    registry.track("a")
    assert registry.aliases == {"released": "2", "previous": "1"}
    registry.aliases = {"released": "9"}
    registry.track("b")
    assert registry.aliases == {"released": "2", "previous": "1"}
    registry.aliases.clear()
    with pytest.raises(TrackingError, match="no released version"):
        registry.roll_back("b")
    registry.track("c")
    assert registry.aliases == {}, "it is rolled back, and no other has the alias"


def test_tags_in_a_circle_end(registry: Registry) -> None:
    registry.versions[0].tags[PREDECESSOR] = "c"
    registry.track("a")
    assert registry.aliases == {"released": "3", "previous": "2"}


def test_a_bundle_is_rolled_back_in_mlflow(study: Study) -> None:
    first = write_example(study.root / "releases/lesions_v1")
    second = write_example(study.root / "releases/lesions_v2", name="lesions_v2", predecessor=first)
    with pytest.raises(DataError, match="MLflow has no record of this bundle"):
        roll_back(second)
    assert register(study, first)["models"] == {MODEL: "1"}
    assert register(study, second)["models"] == {MODEL: "2"}
    client = study.client
    assert client.get_model_version_by_alias(MODEL, "previous").tags[RELEASE] == "lesions_v1"
    said = roll_back(second)
    assert said == f"{MODEL}@released: version 1, lesions_v1\n{MODEL}@previous: none"
    assert client.get_registered_model(MODEL).aliases.keys() == {"released"}
    assert "@released: version 2, lesions_v2" in roll_back(second, undo=True)
    # of a bundle that two studies have, each has its version
    register(study, first, name="other")
    assert register(study, second, name="other")["models"] == {"other.release.lesions_v1": "2"}
    (study.root / "mlflow.db").unlink()
    with pytest.raises(DataError, match="MLflow has no record of this bundle"):
        roll_back(second)
    assert not (study.root / "mlflow.db").exists()
