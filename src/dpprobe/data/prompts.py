"""Makes sentences for a CLIP text encoder: templates filled with the words of each class."""

from __future__ import annotations

import difflib
import re
import string
from collections.abc import Mapping, Sequence
from typing import Any

from dpprobe import project_files
from dpprobe.data.people.alike_names import fold_name
from dpprobe.errors import ConfigError

FIELDS = ("a", "c")
VOWELS = frozenset("aeiou")
# Words with an unusual article: "an hour"; "a unicycle", "a European", but not "unidentified".
SILENT_H = re.compile("hour|heir|honest|honou?r")
LIKE_YOU = re.compile("eu|ewe|uku|us[eu]|ut[ei]|one(?!r)|uni(?![dn]|m[^o])")
WNID = re.compile(r"n\d{8}")  # a WordNet id, which is the name of a folder of ImageNet
# The name under which a study's own templates are recorded.
OWN = "own"


def check_prompts(prompts: str | Sequence[str]) -> None:
    """Checks that a named set of prompts exists, or that templates are valid; imports no library.

    Raises ConfigError if the set does not exist, or a template lacks {c} or has an unknown field in
    braces.
    """
    if isinstance(prompts, str):
        _find_set(prompts)
    else:
        _check_templates(prompts)


def read_templates(prompts: str | Sequence[str]) -> tuple[str, ...]:
    """Returns the templates of a named set, or the given templates, checked by `check_prompts`."""
    if not isinstance(prompts, str):
        _check_templates(prompts)
        return tuple(prompts)
    entry = _find_set(prompts)
    if "open_clip" in entry:
        import open_clip

        return tuple(template("{c}") for template in getattr(open_clip, entry["open_clip"]))
    _check_templates(entry["templates"])
    return tuple(entry["templates"])


def name_classes(
    class_names: Sequence[str], prompt_names: Mapping[str, str] | str
) -> tuple[str, ...]:
    """Returns the words for each class.

    Raises ConfigError if `prompt_names` has an unknown class or a wrong length, or leaves a class
    without words.

    Args:
      class_names: names in the order of the labels; an underscore is read as a space.
      prompt_names: words for some classes; or "imagenet", the thousand names that CLIP's authors
        wrote for ImageNet, in the order of its labels.
    """
    if isinstance(prompt_names, str):
        return _imagenet_words(class_names)
    unknown = sorted(prompt_names.keys() - set(class_names))
    if unknown:
        close = difflib.get_close_matches(unknown[0], class_names, n=1)
        remedy = f"write {close[0]!r}" if close else "remove it"
        raise ConfigError(f"prompt_names: no class {unknown[0]!r}; {remedy}")
    words = {name: prompt_names.get(name, name.replace("_", " ")) for name in class_names}
    if blank := [name for name, word in words.items() if not fold_name(word)]:
        raise ConfigError(f"prompt_names: no word for class {blank[0]!r}; use a visible word")
    return tuple(words.values())


def _imagenet_words(class_names: Sequence[str]) -> tuple[str, ...]:
    import open_clip

    names = tuple(open_clip.IMAGENET_CLASSNAMES)
    if len(names) != len(class_names):
        raise ConfigError(
            f"prompt_names: imagenet names {len(names)} classes, but this dataset has "
            f"{len(class_names)}; write a mapping of class names to words"
        )
    if all(map(WNID.fullmatch, class_names)) and list(class_names) != sorted(class_names):
        raise ConfigError(
            "prompt_names: imagenet names classes in the order of their WordNet ids, but the "
            "dataset has another order; write a mapping of class names to words"
        )
    return names


def choose_article(word: str) -> str:
    """Returns "an" if the first letter is a vowel, else "a", with the usual exceptions."""
    spoken = word.lower()
    if SILENT_H.match(spoken):
        return "an"
    return "an" if spoken[:1] in VOWELS and not LIKE_YOU.match(spoken) else "a"


def make_sentences(templates: Sequence[str], words: Sequence[str]) -> list[list[str]]:
    """Returns one sentence per class and template."""
    return [
        [template.format(c=word, a=choose_article(word)) for template in templates]
        for word in words
    ]


def _find_set(name: str) -> dict[str, Any]:
    sets: dict[str, dict[str, Any]] = project_files.read_yaml("prompts.yaml")
    if name in sets:
        return sets[name]
    known = ", ".join(sorted(sets))
    written = " write a template as a list, [...];" if "{" in name else ""
    raise ConfigError(f"prompts: no set {name!r};{written} choose one of: {known}")


def _check_templates(templates: Sequence[str]) -> None:
    if not templates:
        raise ConfigError(
            "prompts: an empty list; write a template with {c} in place of the class name"
        )
    for template in templates:
        try:
            fields = [  # fields with conversions or formats, which would change words, are unknown
                f"{name}!{conversion or ''}:{spec}" if conversion or spec else name
                for _, name, spec, conversion in string.Formatter().parse(template)
                if name is not None
            ]
        except ValueError as error:
            raise ConfigError(
                f"prompts: {template!r}: {error}; write {{c}} in place of the class name"
            ) from None
        if "c" not in fields:
            raise ConfigError(
                f"prompts: {template!r} has no {{c}}; write {{c}} in place of the class name"
            )
        for name in fields:
            if name not in FIELDS:
                raise ConfigError(
                    f"prompts: {template!r}: {{{name}}} is unknown; write {{c}} in place "
                    "of the class name, {a} in place of its article, and {{ }} for braces"
                )
