"""The release part `sites`: several sites train one head without sending images or exact sums."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import Field, model_validator

from dpprobe.heads.joint_fits import sites_fault
from dpprobe.options import Name, Options
from dpprobe.release.parts.part import ReleasePart

if TYPE_CHECKING:
    from dpprobe.study.study_checks import WantedRelease


class SitesOptions(Options):
    """Several sites train one head together: no image and no exact sum leaves a site."""

    name: Name = Field(description="This site's name, one of `members`.")
    members: dict[Name, str] = Field(
        min_length=2,
        description="The public Ed25519 key of each site, 64 hexadecimal digits, as `dpprobe site "
        "keys` prints it. All sites write equal `members`.",
    )
    key: str = Field(
        min_length=1,
        description="The file of this site's private Ed25519 key in PEM; `dpprobe site keys` "
        "makes it.",
    )
    exchange: str = Field(
        min_length=1,
        description="A folder for the messages of all sites, such as a shared drive. Messages "
        "may be copied in any other way too.",
    )
    colluders: int = Field(
        1,
        ge=1,
        description="Number of sites that may pool all they know, noise included, without "
        "breaking other sites' guarantee. The noise of m sites is larger by "
        "sqrt(m / (m - colluders)).",
    )
    aggregator: Name | None = Field(
        None,
        exclude_if=lambda value: value is None,
        description="A site that all others trust: the aggregator adds all the noise, and could "
        "compute the exact sum of the other sites' sums. Without an aggregator, nobody is trusted.",
    )
    wait_minutes: float = Field(
        60,
        ge=0,
        le=10_000,
        description="Minutes that a Snakemake job waits for other sites before the job fails. The "
        "next run resumes the release.",
    )

    @model_validator(mode="after")
    def _check_members(self) -> SitesOptions:
        for key, site in (("name", self.name), ("aggregator", self.aggregator)):
            if site is not None and site not in self.members:
                raise ValueError(
                    f"{key} {site}: not one of members ({', '.join(self.members)}); add it to "
                    "members, or correct the name"
                )
        if self.colluders >= len(self.members):
            raise ValueError(
                f"colluders {self.colluders}: there are {len(self.members)} sites, and one must "
                f"be honest; use at most {len(self.members) - 1}"
            )
        if self.aggregator is not None and self.colluders != 1:
            raise ValueError(
                f"colluders {self.colluders}: has no effect with an aggregator, which adds all "
                "the noise; remove colluders"
            )
        return self


def list_faults(wanted: WantedRelease) -> Iterator[str]:
    release, method = wanted.release, wanted.method
    if release.block(SitesOptions) is None:
        return
    if release.cohort is not None:
        yield "sites: not possible with `cohort`; remove one of the two"
    if not method.is_undecided and (fault := sites_fault(method)):
        yield f"sites: method {release.method}: {fault}"


PART = ReleasePart(
    key="sites",
    options=SitesOptions,
    describe="Train one head with other sites; the dataset has only the rows of this site.",
    faults=list_faults,
)
