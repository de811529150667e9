"""Normalizes names of people, for sources of data, the estimator and hashes in ledgers.

Two spellings are the same name if they differ only in spaces at an end, or in type (text or bytes).
A dataset may not contain several spellings of a number, such as 12, 12.0 and 0012. Names that look
alike, such as P1 and p01, count as two people, with a warning. A split with P1 in train and p01 in
test is refused.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable
from decimal import Decimal
from itertools import chain
from typing import Any, NamedTuple

from dpprobe.data.people.alike_names import fold_letters, fold_name, in_words
from dpprobe.data.people.group_columns import BLANKS, SHEET_ERRORS

_WHOLE = re.compile(r"[+-]?\d{1,300}")
# An exponent needs a sign, as in printed floats: 1e16 may be a hash.
_NUMBER = re.compile(r"[+-]?(\d{1,300}\.?\d{0,300}|\.\d{1,300})(e[+-]\d{1,3})?")

# Spreadsheets round long numbers to texts such as 1.23E+12, which several people may share.
_ROUNDED = re.compile(r"\d(\.\d{1,20})?E\+\d\d")

ALIKE = "differ only in case, spaces, punctuation, zeros or the notation of a number or date"
_EXACT_BELOW = {"float16": 2**11, "float32": 2**24}  # whole numbers, by NumPy's type
_FLOAT_DIGITS, _LARGEST_POWER = 15, 18  # digits that spreadsheets keep; exponents such as 1e3
# Texts quoted by a spreadsheet (="007", '007) or by Python (b'p1').
_WRAPPED = re.compile(r"""=?"(.+)"|b'(.+)'|'([^']+)'?""")
_PUNCTUATION = str.maketrans(
    dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-")
    | dict.fromkeys("\u2018\u2019\u02bc\u2032", "'")
)
# Characters that look like a dash, in addition to Unicode's category of dashes.
_DASHES = "\u02d7\u2043\u2052\u2212\u2796"
_MIDNIGHT_ZONE = re.compile(r"([Tt ]00:00(?::00(?:\.0+)?)?) ?(?:[+-]00(?::?00)?|UTC)$")
_THOUSANDS = re.compile(r"\d{1,3}([,' _]\d{3})+(\.0*)?")
_POWER = re.compile(r"\d{1,19}(?:\.\d{1,19})?e(\d{1,2})")
_HEX = re.compile(r"[0-9a-f-]{6,}")
# An inner _ separates words like a space. Other punctuation counts, as in __main__ and a/b, except
# next to a number: site/2 is site2.
_SEPARATORS = re.compile(
    r"[-\s_/.,;:#]+(?=\d)|(?<=\d)[-\s_/.,;:#]+|[-\s.,;:#]+|(?<=[^\W_])_(?=[^\W_])"
)
_BESIDE_NUMBER = re.compile(r"(?<=[^\W\d])-(?=\d)|(?<=\d)-(?=[^\W\d])")
_ZEROS = re.compile(r"(?<!\d)0+(?=\d)")
_MIDNIGHT = re.compile(r"[t ]00:00(:00(\.0+)?)?z?$")
_HAS_YEAR = re.compile(r"(?<!\d)\d{4}(?!\d)|^\d{8}$")
_FIRST_LETTERS = "janfebmaraprmayjunjulaugsepoctnovdec"
_MONTHS = {_FIRST_LETTERS[3 * place : 3 * place + 3]: place + 1 for place in range(12)}
_MONTH = rf"((?:{'|'.join(_MONTHS)})[a-z]*)"
_DATES = (  # notations, in which day and month may have either order
    re.compile(r"(\d{4})[-/. ](\d\d?)[-/. ](\d\d?)"),
    re.compile(r"(\d\d?)[-/. ](\d\d?)[-/. ](\d{4})"),
    re.compile(r"((?:19|20)\d\d)(\d\d)(\d\d)"),
    re.compile(rf"(\d\d?)[-/. ]*{_MONTH}[-/., ]*(\d{{4}})"),
    re.compile(rf"{_MONTH}[-/. ]*(\d\d?)[-/., ]+(\d{{4}})"),
)


def person_name(value: Any) -> str:
    """Returns a person's name as text; empty if it is missing: None, "nan", "#N/A", "1.23E+12"."""
    text = value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
    text = text.strip()
    missing = text.casefold() in BLANKS | SHEET_ERRORS or _ROUNDED.fullmatch(text)
    return "" if missing else text


def list_spellings(name: str) -> set[str]:
    """Lists a name and its standard spellings, which equal numbers and similar names share."""
    # Earlier ledgers have hashes of spellings with more invisible characters and dashes.
    texts = {fold_letters(name), fold_name(_write_plainly(name))}
    return {name}.union(*({_standard_number(text), _read_text(text).loose} for text in texts))


def _write_plainly(name: str) -> str:
    """Replaces all dashes by "-", and removes the time zone of a date's midnight."""
    if not name.isascii():
        dashes = {each for each in name if each in _DASHES or unicodedata.category(each) == "Pd"}
        name = name.translate(dict.fromkeys(map(ord, dashes), "-"))
    return _MIDNIGHT_ZONE.sub(r"\1", name)


def _standard_number(text: str) -> str:
    """Returns a number in its standard spelling; another text unchanged."""
    if _WHOLE.fullmatch(text):
        return str(int(text))
    if not _NUMBER.fullmatch(text):
        return text
    value = float(text)
    return str(int(value) if value.is_integer() else value)


def find_equal_numbers(names: Collection[str]) -> dict[str, str]:
    """Maps each name that is a number to the shortest other spelling of this number, if any."""
    texts = {name: text for name in names if _NUMBER.fullmatch(text := fold_name(name))}
    # If there are floats, whole numbers are compared as floats, which may have lost digits.
    rounded = {float(text) for text in texts.values() if not _WHOLE.fullmatch(text)}
    same: dict[float, list[str]] = {}
    for name, text in texts.items():
        value = float(text)
        same.setdefault(value if value in rounded else int(text), []).append(name)
    shortest = dict[str, str]()
    for group in same.values():
        first = min(group, key=lambda name: (len(name), name))
        shortest |= {name: first for name in group if name != first}
    return shortest


def find_alike_people(names: Iterable[str]) -> list[tuple[str, ...]]:
    """Lists groups of names that look alike, by the first name of each group.

    Names are alike if they differ only in case, spaces, punctuation, zeros before a number, or in
    the notation of a number or date. Names of equal length that differ only in zeros are different
    codes, not alike. Neither are different dates in the same notation.
    """
    same: dict[str, dict[_Reading, list[str]]] = {}
    for name in dict.fromkeys(names):
        reading = _read_name(name)
        same.setdefault(reading.loose, {}).setdefault(reading, []).append(name)
    groups = list[tuple[str, ...]]()
    for readings in same.values():
        several = len({reading.notation for reading in readings}) > 1
        parts = [[*chain(*readings.values())]] if several else readings.values()
        groups += [tuple(part) for part in parts if len(part) > 1]
    return groups


class _Reading(NamedTuple):
    """A name in standard spelling; `loose` also ignores zeros, and the order of day and month."""

    loose: str
    exact: str
    notation: str


def _read_name(name: str) -> _Reading:
    return _read_text(fold_name(_write_plainly(name)))


def _read_text(text: str) -> _Reading:
    """Reads a folded name."""
    if wrapped := _WRAPPED.fullmatch(text):
        text = next(filter(None, wrapped.groups()), text).strip()
    if _HAS_YEAR.search(text) and (date := _read_date(text)) is not None:
        return date
    if not text.isascii():  # may have dashes, if `list_spellings` spells as in earlier ledgers
        text = text.translate(_PUNCTUATION)
    if _THOUSANDS.fullmatch(text):
        text = re.sub(r"[^\d.]", "", text)
    if (power := _POWER.fullmatch(text)) and (whole := Decimal(text)) == whole.to_integral_value():
        text = str(int(whole)) if int(power[1]) <= _LARGEST_POWER else text
    if _NUMBER.fullmatch(text):
        text = _standard_number(text)
        return _Reading(text, text, "number")
    if _HEX.fullmatch(text) and len(re.findall("[a-f]+", text)) > 1:  # a hash's zeros count
        return _Reading(text, text, "hash")
    text = _BESIDE_NUMBER.sub("", _SEPARATORS.sub("-", text).rstrip("-") or text)
    return _Reading(_ZEROS.sub("", text), text, str(len(text)))


def _read_date(text: str) -> _Reading | None:
    text = _MIDNIGHT.sub("", text)
    for notation, pattern in enumerate(_DATES):
        if match := pattern.fullmatch(text):
            parts = [_MONTHS.get(each[:3]) or int(each) for each in match.groups()]
            month_or_day, other, _ = dates = sorted(parts)  # the year is the largest number
            if 1 <= month_or_day <= 12 and other <= 31:
                return _Reading(str(dates), f"{notation} {parts}", str(notation))
    return None


def name_warnings(names: Iterable[str]) -> list[str]:
    """Lists warnings about names that look alike, and about numbers that have lost digits."""
    lines, names = [], dict.fromkeys(names)
    if alike := find_alike_people(names):
        more = f" (and {len(alike) - 1} more such groups of names)" if len(alike) > 1 else ""
        lines.append(
            f"people: {in_words(alike[0])} {ALIKE}, but count as {len(alike[0])} people{more}; "
            "use one spelling per person"
        )
    if rounded := _find_rounded(names):
        more = f" and {len(rounded) - 1} more" if len(rounded) > 1 else ""
        lines.append(
            f"people: {rounded[0]!r}{more}: long numbers that seem to have lost their last "
            "digits, as in spreadsheets and columns of floats, so several people may share one "
            "name; store the numbers as text from the start"
        )
    return lines


def explain_rounding(names: Iterable[str], kind: str) -> str | None:
    """Returns a warning if names were stored as `kind`, and this type of float rounds them.

    Returns None for types other than float16 and float32, and for smaller numbers.
    """
    if (limit := _EXACT_BELOW.get(kind)) is None:
        return None
    rounded = [name for name in dict.fromkeys(names) if abs(_read_float(name)) >= limit]
    if not rounded:
        return None
    more = f" and {len(rounded) - 1} more" if len(rounded) > 1 else ""
    return (
        f"people: {rounded[0]!r}{more}: stored as {kind}, which rounds whole numbers from "
        f"{limit:,} on, so several people may share one name; write the numbers as texts or "
        "integers from the beginning"
    )


def _read_float(name: str) -> float:
    try:
        return float(name)
    except ValueError:
        return 0.0


def _find_rounded(names: Iterable[str]) -> list[str]:
    """Lists numbers that were floats, or all long whole numbers if all may have been floats."""
    long, floats = list[str](), list[str]()
    for name in names:
        if len(name) < 16 or not _NUMBER.fullmatch(text := fold_name(name)):
            continue
        if _WHOLE.fullmatch(text):
            long += [name] if len(text.lstrip("+-0")) > _FLOAT_DIGITS + 1 else []
        elif float(text) >= 2**53:
            floats.append(name)
    values = [int(name) for name in long]
    by_float = all(value == int(float(value)) for value in values)
    by_sheet = all(value % 10 ** (len(str(value)) - _FLOAT_DIGITS) == 0 for value in values)
    # One of 256 numbers of 19 digits would pass by chance.
    return floats + (long if len(long) > 2 and (by_float or by_sheet) else [])
