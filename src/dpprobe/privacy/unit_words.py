"""Words for units of privacy and for classified items: images, or rows of numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpprobe.privacy.stated_facts import of_vectors


@dataclass(frozen=True, kw_only=True)
class UnitWords:
    """Words to fill into sentences about one kind of unit.

    Attributes:
      one, many: the unit, such as "patient" and "patients".
      whole: one unit with all its rows, such as "one training image".
      whole_short: the unit with all its rows, without "training".
      item, items: the object that a head classifies: "image" or "row".
      picture: the content of an item, such as "picture".
      person: the word for somebody whose data may be several units.
      who: the relative pronoun of the unit: "who" for patients, else "that".
    """

    one: str
    many: str
    whole: str
    whole_short: str
    item: str
    items: str
    picture: str
    person: str
    who: str

    def fill(self, sentence: str, values: Mapping[str, Any] | None = None) -> str:
        """Fills the words and further values into a sentence of `resources/statement.yaml`."""
        return sentence.format(**{**(values or {}), **vars(self)})


def unit_words(unit: str, *, vectors: bool = False) -> UnitWords:
    """Returns the words for one of the units in `Plan.UNITS`.

    `vectors` is True if the features are vectors that a model outside dpprobe computed: their units
    are rows, or patients with rows.
    """
    rows = vectors or unit in ("row", "group")
    item, picture = ("row", "vector") if rows else ("image", "picture")
    grouped = unit in ("patient", "group")
    one = unit if grouped else item
    their = "their" if unit == "patient" else "its"
    return UnitWords(
        one=one,
        many=f"{one}s",
        whole=f"one {one} (all of {their} training {item}s together)"
        if grouped
        else f"one training {item}",
        whole_short=f"{one} (all of {their} {item}s together)" if grouped else one,
        item=item,
        items=f"{item}s",
        picture=picture,
        person="group" if unit == "group" else "person",
        who="who" if unit == "patient" else "that",
    )


def words_of_statement(statement: Mapping[str, Any]) -> UnitWords:
    """Returns the words for the unit of a privacy statement."""
    return unit_words(statement["unit"], vectors=of_vectors(statement["public_data"]))
