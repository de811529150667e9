"""The options of the block `sites` in a study file."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from dpprobe.options import Name, Options, reject_repeats

Split = Literal["equal", "sizes", "labels"]


def _read_list(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


class SimulatedSitesOptions(Options):
    """Simulated sites: parts of a dataset, on which sites train heads alone and together."""

    datasets: tuple[Name, ...] | None = Field(
        None,
        min_length=1,
        description="Datasets to split; without this option, all datasets with one label per "
        "image.",
    )
    backbones: tuple[Name, ...] | None = Field(
        None, min_length=1, description="Backbones to use; without this option, all backbones."
    )
    method: Name | None = Field(
        None,
        description="The method that sites train. Without this option, the first method of the "
        "study that sites can train.",
    )
    counts: Annotated[
        tuple[Annotated[int, Field(ge=2, le=1000)], ...],
        BeforeValidator(_read_list, json_schema_input_type=int | tuple[int, ...]),
        AfterValidator(reject_repeats),
    ] = Field((2, 5, 10), min_length=1, description="Numbers of sites, or a single number.")
    splits: Annotated[
        tuple[Split, ...],
        BeforeValidator(_read_list, json_schema_input_type=Split | tuple[Split, ...]),
        AfterValidator(reject_repeats),
    ] = Field(
        ("equal",),
        min_length=1,
        description="How to divide the patients, or images if patients are unknown, among sites. "
        "`equal`: equal sizes. `sizes`: sizes in the ratio 1 to 1/2 to 1/3 and so on. `labels`: "
        "equal sizes, and other class frequencies at each site (Dirichlet, 0.5).",
    )
    colluders: int = Field(
        1, ge=1, description="Number of sites that may collude, as in `releases.<name>.sites`."
    )

    @model_validator(mode="after")
    def _check_colluders(self) -> SimulatedSitesOptions:
        if self.colluders >= min(self.counts):
            raise ValueError(
                f"colluders {self.colluders}: with {min(self.counts)} sites no site would be "
                f"honest; use at most {min(self.counts) - 1}, or larger counts"
            )
        return self
