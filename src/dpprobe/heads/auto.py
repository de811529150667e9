"""`head: auto`: a head and its options, chosen by `auto_rule` from public facts of the data.

It releases what the chosen head releases, at its price; with `balanced` also the class counts. The
choice is a function of public facts (n, dimension, classes, labels per example, epsilon, delta,
unit of privacy), so choosing costs nothing. The rule was fixed on public features; every record and
statement names its version.

The dimension is known with the features, so the job that trains resolves the options: it sets
`rule` and `chosen`, and everything else asks the chosen head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from dpprobe.errors import ConfigError
from dpprobe.heads.auto_rule import RULE, choose_head
from dpprobe.heads.balance import DEFAULT_PRIOR_SHARE
from dpprobe.heads.facts import DataFacts
from dpprobe.heads.fitted import Fitted, Record
from dpprobe.heads.normalisation import NoNormalisation, Normalize
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.registry import HEADS, AnyMethod, method_options
from dpprobe.privacy.plan import Mechanism, Selection

if TYPE_CHECKING:
    from dpprobe.heads.rows import Rows
    from dpprobe.privacy.releases import Releases

# A rule chooses a linear head with options of its own.
_NOT_CHOSEN = ("auto", "nonprivate", "tuned")


class Options(MethodOptions):
    """A head and options chosen by a rule from public facts."""

    head: Literal["auto"] = "auto"
    balanced: bool = Field(
        False,
        exclude_if=lambda value: not value,
        description="Answer as if classes were equally frequent, for data with rare classes that "
        "matter as much as frequent ones. The class frequencies are released, at "
        f"{100 * DEFAULT_PRIOR_SHARE:g}% of the budget. Only for one label per image.",
    )
    # Written by the rule, and left out of the schema of a study.
    normalize: SkipJsonSchema[Normalize] = NoNormalisation()
    rule: SkipJsonSchema[int | None] = None
    chosen: SkipJsonSchema[AnyMethod | None] = None

    @model_validator(mode="after")
    def _check_chosen(self) -> Self:
        if self.chosen is None:
            if self.normalize != NoNormalisation():
                raise ValueError(
                    "normalize: auto chooses it; remove normalize, or write another head"
                )
            return self
        if self.rule is None:
            raise ValueError("chosen: needs rule, the rule that chose it; remove chosen")
        if self.chosen.head in _NOT_CHOSEN or self.chosen.head not in HEADS:
            raise ValueError(f"chosen: no rule chooses head {self.chosen.head}; remove chosen")
        if self.balanced != self.chosen.releases_priors:
            raise ValueError(
                "balanced: must be true exactly if the chosen head releases its class counts; "
                "correct one of them"
            )
        if "normalize" in self.model_fields_set and self.normalize != self.chosen.normalize:
            raise ValueError("normalize: is an option of the chosen head; remove it")
        self.__dict__["normalize"] = self.chosen.normalize
        return self

    @property
    def is_undecided(self) -> bool:
        return self.chosen is None

    def resolve_choice(self, facts: DataFacts) -> Self:
        """Returns today's rule's choice; raises ConfigError if the options name another rule."""
        if self.chosen is not None:
            return self
        if self.rule not in (None, RULE):
            raise ConfigError(
                f"head auto: the study was planned with rule {self.rule}, but this dpprobe "
                f"has rule {RULE}; run again"
            )
        if fault := self.class_fault(facts.classes, multi_label=facts.multi_label):
            raise ConfigError(f"head auto: {fault}")
        values = choose_head(facts)
        if self.balanced:
            values["class_priors"] = "released"
        return type(self)(balanced=self.balanced, rule=RULE, chosen=method_options(values))

    @property
    def trained_options(self) -> MethodOptions:
        if self.chosen is None:
            raise ConfigError(
                "head auto: the choice needs the features; call `resolved` with their facts"
            )
        return self.chosen

    def for_release(self) -> MethodOptions:
        """Returns the options with `engine: exact` if the chosen head has engines."""
        if self.trained_options.is_exact:
            return self
        exact = method_options({**self.trained_options.model_dump(mode="json"), "engine": "exact"})
        return type(self)(balanced=self.balanced, rule=self.rule, chosen=exact)

    def chosen_from(self, facts: DataFacts) -> dict[str, Any]:
        asked = {"balanced": True} if self.balanced else {}
        said = {"rule": f"auto rule {self.rule}", "head": self.trained_options.head}
        return {**said, **asked, **facts.to_dict()}

    def asked_options(self) -> dict[str, Any]:
        """Returns the options with the current rule; a changed rule makes jobs run again."""
        return {**super().asked_options(), "rule": self.rule or RULE}

    @property
    def multi_label(self) -> bool:
        return self.chosen is None or self.chosen.multi_label

    @property
    def link(self) -> Literal["softmax", "sigmoid", "none"]:
        return self.trained_options.link

    def link_on(self, multi_label: bool) -> Literal["softmax", "sigmoid", "none"]:
        return self.trained_options.link_on(multi_label)

    @property
    def private_choices(self) -> str | None:
        return None if self.chosen is None else self.chosen.private_choices

    @property
    def is_exact(self) -> bool:
        return self.chosen is None or self.chosen.is_exact

    @property
    def releases_priors(self) -> bool:
        return self.balanced

    def class_fault(self, classes: int, *, multi_label: bool) -> str | None:  # noqa: ARG002
        if self.balanced and multi_label:
            return "balanced needs one label per row, but these rows have several; remove it"
        return None

    @property
    def engine_limits(self) -> str | None:
        return self.trained_options.engine_limits

    def list_releases(self, n: int) -> tuple[Mechanism, ...]:
        return self.trained_options.list_releases(n)

    def list_mechanisms(self, n: int) -> tuple[Mechanism, ...]:
        return self.trained_options.list_mechanisms(n)

    def priced_selection(self, n: int) -> Selection | None:
        return self.trained_options.priced_selection(n)


def fit(options: Options, rows: Rows, releases: Releases, *, record: Record | None) -> Fitted:
    # torch and what needs it: planning imports this module
    from dpprobe.heads.balance import fit_balanced

    return fit_balanced(options.trained_options, rows, releases, record=record)
