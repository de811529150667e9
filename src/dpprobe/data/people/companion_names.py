"""Finds companions by name: variants of a picture, such as `x_mask.png` next to `x.png`.

A companion's name is the name of another image (its *base*) plus a separator and a word. The word
determines the kind of companion: mask, preview, copy, or something else. A word counts only if
enough images have a companion with this word:

- Three bases are enough for a known word, such as `mask` or `flip`: that is no coincidence.
- Another word needs three bases, and a tenth of all names.

Numbers, and words for sides and views, never make a companion: `x_1`, `x_L`, `IM-0001-0002`.

To leave companions out, a study lists their words. Then only its own name decides whether an image
is left out (`find_left_out`), so no image affects whether another image is used for training.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple

Kind = Literal["mask", "copy", "other"]

FEWEST_BASES = 3
SHARE = 10  # unknown words need a companion for one in SHARE names

SIZE, NUMBERED = "#x#", "(#)"  # the words of `x-150x150` and of `x (1)`
_MASK_WORDS = """
    anno annot annotated annotation bbox contour gradcam groundtruth gt heatmap icon label
    labeled labelled lowres mask masked matte outline overlay overlaid preview resized
    saliency scaled seg segm segment segmentation segmented superpixel thumb thumbnail tn
    trimap truth
    """
_MASKS = frozenset(_MASK_WORDS.split()) | {SIZE}
_COPY_WORDS = """
    aug augment augmentation augmented augm bright brightened brightness blur blurred clahe
    contrast copia copie copy crop cropped darkened deg degree dup duplicate duplicated edit
    edited elastic enhanced equalized flip fliph fliplr flipped flipud flipv gamma gray
    grayscale grey hflip hue invert inverted jitter kopie mirror mirrored noise noisy
    normalised normalized patch processed roi rot rotate rotated rotation saturation sharpen
    sharpened shear sheared shift shifted transform transformed translate translated vflip
    zoom zoomed
    """
_COPIES = frozenset(_COPY_WORDS.split()) | {NUMBERED}
_KINDS: Mapping[str, Kind] = {**dict.fromkeys(_MASKS, "mask"), **dict.fromkeys(_COPIES, "copy")}
# Words of folders next to the images' folder; excludes words of many classes (crop).
_FOLDERS = (_MASKS - {SIZE, "tn", "icon"}) | {"aug", "augmentation", "augmented"}
_FILLER = frozenset({"data", "file", "files", "image", "images", "img", "imgs", "picture"})
# Sides and views of a person, which are separate pictures.
_VIEW_WORDS = """
    ap back bottom cc dex dexter frontal front l lat lateral left lt mlo od os ou pa r right
    rt side sin sinister top view
    """
_VIEWS = frozenset(_VIEW_WORDS.split())

_TOKEN = re.compile(r"(?<!\d)\d+x\d+(?![^\W_])|\d+|[^\W\d_]+")
_BRACKETS = re.compile(r"[\s_-]*\(\d+\)")
_SEPARATORS = " _-.,()@+~[]\t"
_BLANKS = "".join(filter(str.isspace, map(chr, range(0x3001))))  # no later character is blank
_TO_BLANK = str.maketrans(dict.fromkeys(_SEPARATORS + _BLANKS, " "))
_ONLY_MASKS = re.compile(rf"(?:(?:{'|'.join(sorted(_MASKS - {SIZE}))})s?(?![^\W\d_])[\W\d_]*)+")
_MASK_STARTS = frozenset(word[:2] for word in _MASKS)
_DIGITS = "0123456789"
_CUTS = 12  # the most separators, from a name's end, at which a word may begin
_FOLDERS_COMPARED = 10  # the most folders with the same base that are compared to find the nearest


class Pair(NamedTuple):
    """The positions of a companion and of its base in the list of names."""

    companion: int
    base: int


@dataclass(frozen=True, kw_only=True)
class Companions:
    """The companions with one word, in the order of names."""

    word: str
    kind: Kind
    pairs: tuple[Pair, ...]


class _Names(NamedTuple):
    """Names prepared for comparison: the folder, stem and outer folders of each."""

    folders: list[str]
    stems: list[str]
    outer: Sequence[int]


def kind_of(word: str) -> Kind:
    return _KINDS.get(word, "other")


@lru_cache(maxsize=1 << 14)
def read_word(text: str) -> str | None:
    """Returns the word in the end of a name, such as `mask` in `_mask_1`; None without a word.

    A known word replaces the whole part, so `_aug_3f2` and `_aug_9c1` have the same word.
    """
    if _BRACKETS.fullmatch(text):
        return NUMBERED
    tokens = [_read_token(each) for each in _TOKEN.findall(text.casefold())]
    for known in (_MASKS, _COPIES):
        if word := next((token for token in tokens if token in known), None):
            return word
    words = [token for token in tokens if token != "#"]
    if _VIEWS.issuperset(words):  # also without any word
        return None
    first, last = tokens.index(words[0]), len(tokens) - tokens[::-1].index(words[-1])
    return " ".join(tokens[first:last])


@lru_cache(maxsize=1 << 14)
def _is_known(token: str) -> bool:
    return _read_token(token) in _KINDS


def _read_token(token: str) -> str:
    if token[0].isdigit():
        return SIZE if "x" in token else "#"
    single = token.removesuffix("s")
    return single if single in _KINDS else token


def is_word(word: str) -> bool:
    """Returns True for a word that `read_word` may return."""
    return word in _KINDS or (read_word(f"_{word}") == word and bool(_TOKEN.search(word)))


def find_companions(
    names: Sequence[str], *, outer: int | Sequence[int] = 0
) -> tuple[Companions, ...]:
    """Finds the companions among names of images, which are paths with `/`.

    A base may be in another folder: `masks/x.png` and `masks/x_mask.png` are companions of
    `images/x.png`.

    Args:
      outer: the number of folders at the beginning of each path to ignore, because their names are
        classes or parts.
    """
    found: dict[str, list[Pair]] = defaultdict(list)
    for word, pair in _list_pairs(_read_names(names, outer)):
        found[word].append(pair)
    result = []
    for word, pairs in found.items():
        kind, bases = kind_of(word), len({pair.base for pair in pairs})
        if bases >= FEWEST_BASES and (kind != "other" or SHARE * bases >= len(names)):
            result.append(Companions(word=word, kind=kind, pairs=tuple(pairs)))
    order: tuple[Kind, ...] = ("mask", "copy", "other")
    return tuple(sorted(result, key=lambda each: (order.index(each.kind), -len(each.pairs))))


def _read_names(names: Sequence[str], outer: int | Sequence[int]) -> _Names:
    folders, stems = list[str](), list[str]()
    for name in names:
        folder, _, file = name.rpartition("/")
        folders.append(folder)
        stems.append(_read_stem(file))
    depths = [outer] * len(stems) if isinstance(outer, int) else outer
    assert len(depths) == len(stems)
    return _Names(folders, stems, depths)


def _read_stem(file: str) -> str:
    folded = file.casefold()
    stem, _, extension = folded.rpartition(".")
    return stem if stem and _is_extension(extension) else folded


@lru_cache(maxsize=1 << 10)
def _is_extension(text: str) -> bool:
    # The end of a name like 1.2.840.113619 is no extension.
    return text.isalnum() and not text.isdigit() and len(text) <= 5


def _list_pairs(names: _Names) -> Iterator[tuple[str, Pair]]:
    """Yields the word, companion and base of each companion; takes a few microseconds per name."""
    places, folders = _Places(names), _FolderPairs(names)
    masks = {
        position
        for position, stem in enumerate(names.stems)
        if stem[:2] in _MASK_STARTS and _ONLY_MASKS.fullmatch(stem)
    }
    pictures = _first_pictures(names, masks)
    for position, (folder, stem) in enumerate(zip(names.folders, names.stems, strict=True)):
        pair = places.split_stem(position) or folders.find_base(position)
        if pair is None and position in masks and folder in pictures:
            pair = read_word(stem) or "", pictures[folder]
        if pair is not None and pair[1] != position:
            yield pair[0], Pair(position, pair[1])


class _Places:
    """The positions of names, by their stems and folders."""

    def __init__(self, names: _Names) -> None:
        self._names = names
        # stem -> the position of its first name
        self._first = dict(zip(names.stems[::-1], range(len(names.stems))[::-1], strict=True))
        self._marked = _mark_separators(names.stems)
        self._lengths = {*map(len, self._first)}  # to reject most cuts without copying a text

    @cached_property
    def _exact(self) -> dict[tuple[str, str], int]:
        """The first position of each (folder, stem); computed only if there are possible bases."""
        keys = [*zip(self._names.folders, self._names.stems, strict=True)]
        return dict(zip(keys[::-1], range(len(keys))[::-1], strict=True))

    @cached_property
    def _folders(self) -> dict[str, list[str]]:
        """The folders of each stem that occurs in several folders."""
        folders, several = self._names.folders, dict[str, list[str]]()
        for position, stem in enumerate(self._names.stems):
            first = self._first[stem]
            if first != position and folders[position] != folders[first]:
                several.setdefault(stem, [folders[first]]).append(folders[position])
        return several

    def split_stem(self, position: int) -> tuple[str, int] | None:
        """Splits a name into the longest possible base and a word, or into a word and a base."""
        marked = self._marked[position]
        cut = marked.rfind(" ")
        if cut < 0:
            return None
        first, lengths = self._first, self._lengths
        folder, stem = self._names.folders[position], self._names.stems[position]
        for _ in range(_CUTS):
            if cut <= 0:
                break
            if (
                cut in lengths
                and stem[:cut] in first
                and (word := read_word(stem[cut:])) is not None
            ):
                base = self._nearest(stem[:cut], folder, anywhere=kind_of(word) != "other")
                if base is not None:
                    return word, base
            cut = marked.rfind(" ", 0, cut)
        cut = marked.find(" ")
        if not _is_known(stem[:cut].rstrip(_DIGITS) or "#"):
            return None
        for _ in range(_CUTS):
            if cut < 0:
                break
            rest = stem[cut:].lstrip(_SEPARATORS)
            if rest in first and (word := read_word(stem[:cut])) is not None:
                base = self._nearest(rest, folder, anywhere=True)
                return word, first[rest] if base is None else base
            cut = marked.find(" ", cut + 1)
        return None

    def _nearest(self, stem: str, folder: str, *, anywhere: bool) -> int | None:
        """Returns the position of a base in a folder, in the folders around it, or nearby."""
        if self._names.folders[first := self._first[stem]] == folder:
            return first
        here = folder
        while True:
            if (position := self._exact.get((here, stem))) is not None:
                return position
            if not here:
                break
            here = here.rpartition("/")[0]
        if not anywhere:
            return None
        several = self._folders.get(stem)
        if several is None:
            return first
        near = max(several[:_FOLDERS_COMPARED], key=lambda other: _count_shared(other, folder))
        return self._exact[near, stem]


def _mark_separators(stems: Sequence[str]) -> list[str]:
    """Replaces separators by blanks, in all names with one call, which is faster."""
    marked = "\0".join(stems).translate(_TO_BLANK).split("\0")
    if len(marked) == len(stems):
        return marked
    return [stem.translate(_TO_BLANK) for stem in stems]  # a name contains \0


def _count_shared(folder: str, other: str) -> int:
    """Counts the leading folders that two paths share."""
    pairs = zip(folder.split("/"), other.split("/"), strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def _first_pictures(names: _Names, masks: Collection[int]) -> dict[str, int]:
    """Maps each folder that contains a name like `mask.png` to its only other name.

    In a folder with several pictures, the mask's picture is unknown, so the folder is left out.
    """
    masked = {names.folders[position] for position in masks}
    pictures: dict[str, list[int]] = {}
    for position, folder in enumerate(names.folders) if masks else ():
        if folder in masked and position not in masks:
            pictures.setdefault(folder, []).append(position)
    return {folder: each[0] for folder, each in pictures.items() if len(each) == 1}


@lru_cache(maxsize=1 << 14)
def read_folder(part: str) -> str | None:
    """Returns the word in a folder's name such as `masks` or `Mask images`; None for others."""
    words = [_read_token(each) for each in _TOKEN.findall(part.casefold())]
    words = [each for each in words if each != "#" and each not in _FILLER]
    return words[0] if len(words) == 1 and words[0] in _FOLDERS else None


def find_mask_folders(folders: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, str]]:
    """Finds class folders named like masks, with names of images of other classes.

    Maps such a class to one of its images and the image of equal name. The classes `mask` and
    `no_mask` are classes of pictures with and without a mask, even if names are equal.

    Args:
      folders: class -> its images.
    """
    found = {}
    for name, images in folders.items():
        word = read_folder(name)
        others = [each for each in folders if each != name]
        if word is None or any(word in other.casefold() for other in others):
            continue
        stems = {
            _read_stem(image.rpartition("/")[2]): image for x in others for image in folders[x]
        }
        pairs = [
            (image, stems[stem])
            for image in images
            if (stem := _read_stem(image.rpartition("/")[2])) in stems
        ]
        if len(pairs) >= FEWEST_BASES and 2 * len(pairs) >= len(images):
            found[name] = pairs[0]
    return found


def find_named_folders(
    names: Sequence[str], *, outer: int | Sequence[int] = 0
) -> dict[str, list[int]]:
    """Maps words of folders, such as `masks`, to the positions of the images inside.

    A folder next to folders such as `no_mask` is a class, and so is a folder without siblings.
    `outer` is as in `find_companions`.
    """
    depths = [outer] * len(names) if isinstance(outer, int) else outer
    places = [*zip((name.rpartition("/")[0] for name in names), depths, strict=True)]
    inner = {(folder, depth): folder.split("/")[depth:] for folder, depth in {*places}}
    words = {
        place: next(filter(None, map(read_folder, parts)), None) for place, parts in inner.items()
    }
    if None not in words.values():
        return {}
    others = {"/".join(inner[place]).casefold() for place, word in words.items() if word is None}
    found: dict[str, list[int]] = defaultdict(list)
    for position, place in enumerate(places):
        if (word := words[place]) is not None:
            found[word].append(position)
    return {
        word: positions
        for word, positions in found.items()
        if len(positions) >= FEWEST_BASES and not any(word in other for other in others)
    }


class _FolderPairs:
    """Pairs of names that differ in the folder: `masks/x.png` with `x.png` or `images/x.png`."""

    def __init__(self, names: _Names) -> None:
        self._names = names
        # folder -> (the folder that contains the folder of masks, the folders inside, the word)
        self._masked: dict[tuple[str, int], tuple[str, str, str]] = {}
        for folder, outer in {*zip(names.folders, names.outer, strict=True)}:
            parts = folder.split("/")
            words = map(read_folder, parts[outer:])
            if found := next(((at, word) for at, word in enumerate(words, outer) if word), None):
                at, word = found
                inside = "/".join(parts[at + 1 :])
                self._masked[folder, outer] = "/".join(parts[:at]), inside, word
        # a value of `_masked` -> stem -> the first position in folders that may have the pictures
        self._beside = {each: dict[str, int]() for each in self._masked.values()}
        pictures = {folder: self._list_beside(folder) for folder in {*names.folders}}
        for position, folder in enumerate(names.folders) if self._beside else ():
            for stems in pictures[folder]:
                stems.setdefault(names.stems[position], position)

    def _list_beside(self, folder: str) -> list[dict[str, int]]:
        """Lists the values of `_beside` whose pictures may be in a folder.

        Pictures are not in sibling folders whose names contain the word, such as class no_mask.
        """
        if not self._beside:
            return []
        words = {word for *_, word in self._beside}
        return [
            self._beside[parent, inside, word]
            for parent, between, inside in _list_places(folder)
            for word in words
            if (parent, inside, word) in self._beside and word not in between.casefold()
        ]

    def find_base(self, position: int) -> tuple[str, int] | None:
        if not self._masked:
            return None
        key = self._masked.get((self._names.folders[position], self._names.outer[position]))
        base = None if key is None else self._beside[key].get(self._names.stems[position])
        return None if key is None or base is None else (key[2], base)


def _list_places(folder: str) -> Iterator[tuple[str, str, str]]:
    """Yields splits of a path into an outer folder, the part below, and further parts."""
    parts = folder.split("/") if folder else []
    for place in range(len(parts) + 1):
        between = parts[place] if place < len(parts) else ""
        yield "/".join(parts[:place]), between, "/".join(parts[place + 1 :])


def find_based(names: Sequence[str], *, outer: int | Sequence[int] = 0) -> list[bool]:
    """Returns True for each name with a base among the names, even if few names have its word."""
    based = {pair.companion for _, pair in _list_pairs(_read_names(names, outer))}
    return [position in based for position in range(len(names))]


def find_left_out(
    names: Sequence[str], words: Iterable[str], *, outer: int | Sequence[int] = 0
) -> list[bool]:
    """Returns True for each name with one of the words, in the file's name or a folder's name.

    A word has no adjacent letter: `mask` is in `x_mask_1.png` and `masks/x.png`, but not in
    `unmasked.png`. A folder's name must equal the word. Each name is checked independently. `outer`
    is as in `find_companions`.
    """
    wanted = list(words)
    inside = re.compile("|".join(map(_pattern_of, wanted)), re.IGNORECASE)
    folders = {word for word in wanted if word in _FOLDERS}
    depths = [outer] * len(names) if isinstance(outer, int) else outer
    known: dict[tuple[str, int], bool] = {}
    result = []
    for name, depth in zip(names, depths, strict=True):
        folder, _, file = name.rpartition("/")
        if (folder, depth) not in known:
            parts = folder.split("/")[depth:]
            known[folder, depth] = any(read_folder(part) in folders for part in parts)
        stem = _read_stem(file)
        result.append(known[folder, depth] or inside.search(stem) is not None)
    return result


def _pattern_of(word: str) -> str:
    if word == SIZE:
        return r"(?<![^\W_])\d+x\d+(?![^\W_])"
    if word == NUMBERED:
        return r"(?<=.)\(\d+\)$"
    tokens = [r"\d+" if token == "#" else re.escape(token) for token in word.split(" ")]
    joined = r"[\W_]*".join(tokens)
    plural = "s?" if word in _KINDS else ""
    return rf"(?<![^\W\d_]){joined}{plural}(?![^\W\d_])"
