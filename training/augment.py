"""Text augmentation: WordNet synonyms, and paraphrases from another tool (back-translation)."""

from __future__ import annotations

import hashlib
import os
import random
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import ClassVar

from .data.files import named_rows
from .data.readers import read

__all__ = ["WordNet", "augment_wordnet", "read_paraphrases"]

_WORD = re.compile(r"[A-Za-z]+(?:['’][A-Za-z]+)?")
# Function words: WordNet lists many of them with rare senses ("a": the vitamin; "in": the inch).
_STOP = frozenset(
    """a about above after again against all am an and any are as at be because been before being below
    between both but by can could did do does doing done down during each few for from further had
    has have having he her here hers him his how i if in into is it its itself just like may me
    might more most much must my no nor not now of off on once one only or other our out over own
    same shall she should so some such than that the their them then there these they this those
    through to too two under until up us very was we were what when where which while who whom why
    will with would you your""".split()  # noqa: SIM905
)
# Morphy's rules of detachment: (part of speech, ending, what replaces it, inflection).
_ENDINGS = (
    ("n", "ses", "s", "plural"),
    ("n", "xes", "x", "plural"),
    ("n", "zes", "z", "plural"),
    ("n", "ches", "ch", "plural"),
    ("n", "shes", "sh", "plural"),
    ("n", "ies", "y", "plural"),
    ("n", "s", "", "plural"),
    ("v", "ies", "y", "third"),
    ("v", "es", "e", "third"),
    ("v", "es", "", "third"),
    ("v", "s", "", "third"),
    ("v", "ied", "y", "past"),
    ("v", "ed", "e", "past"),
    ("v", "ed", "", "past"),
    ("v", "ing", "e", "ing"),
    ("v", "ing", "", "ing"),
)
_PARTS = "nvar"


class WordNet:
    """Synonyms of a word's most frequent sense, in the word's own inflection."""

    FILES: ClassVar[tuple[str, str, str]] = ("synsets.tsv.gz", "index.tsv.gz", "exceptions.tsv.gz")

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Read the three files of a folder.

        Args:
            path: holds synsets.tsv.gz (ss_type, offset, lemmas), index.tsv.gz (lemma, pos, n_tagged_senses,
                offsets_in_sense_order) and exceptions.tsv.gz (form, pos, lemmas), with lists split by ``|``.

        Raises:
            FileNotFoundError: one of them is missing.
            ValueError: one is damaged or lacks a column.
        """
        folder = Path(path)
        synsets, index, exceptions = self.FILES
        self._synsets = {
            ("a" if kind == "s" else kind, offset): lemmas.split("|")
            for _, (kind, offset, lemmas) in named_rows(folder / synsets, ("ss_type", "offset", "lemmas"))
        }
        self._senses: dict[tuple[str, str], tuple[int, str]] = {}
        columns = ("lemma", "pos", "n_tagged_senses", "offsets_in_sense_order")
        for _, (lemma, part, tagged, offsets) in named_rows(folder / index, columns):
            self._senses[lemma, part] = (int(tagged), offsets.split("|", 1)[0])
        self._lemmas: dict[str, list[tuple[str, str]]] = {}
        self._forms: dict[tuple[str, str], list[str]] = {}
        for _, (form, part, lemmas) in named_rows(folder / exceptions, ("form", "pos", "lemmas")):
            for lemma in lemmas.split("|"):
                self._lemmas.setdefault(form, []).append((lemma, part))
                self._forms.setdefault((lemma, part), []).append(form)

    def synonyms(self, word: str) -> list[str]:
        """Single-word synonyms of a lower-case word; none for function words.

        There is no tagger: the part of speech is the one with the most senses in WordNet's tagged texts, so that a
        rare reading is missed rather than a frequent one.
        """
        if word in _STOP or len(word) < 3 or not word.isalpha():
            return []
        readings = [
            (-self._senses[lemma, part][0], _PARTS.index(part), lemma, part, inflection)
            for lemma, part, inflection in self._readings(word)
            if (lemma, part) in self._senses and part in _PARTS
        ]
        if not readings:
            return []
        _, _, lemma, part, inflection = min(readings)
        found = []
        for synonym in self._synsets.get((part, self._senses[lemma, part][1]), ()):
            if synonym != lemma and synonym.isascii() and synonym.isalpha() and synonym.islower():
                form = self._inflect(synonym, part, inflection)
                if form is not None and form != word:
                    found.append(form)
        return found

    def _readings(self, word: str) -> Iterator[tuple[str, str, str]]:
        """The possible (lemma, part of speech, inflection) of the word."""
        for part in _PARTS:
            yield word, part, ""
        irregular = set()
        for lemma, part in self._lemmas.get(word, ()):
            irregular.add(part)
            if part == "n":
                yield lemma, part, "plural"
            elif part == "v":
                yield lemma, part, _verb_form(word)
        for part, ending, replacement, inflection in _ENDINGS:
            if part not in irregular and word.endswith(ending) and not word.endswith("ss"):
                yield word.removesuffix(ending) + replacement, part, inflection

    def _inflect(self, lemma: str, part: str, inflection: str) -> str | None:
        """The form of a lemma; None if past and participle differ, since the word is ambiguous."""
        if not inflection:
            return lemma
        forms = self._forms.get((lemma, part), [])
        if part == "v":
            forms = [form for form in forms if _verb_form(form) == inflection]
        if forms:
            return forms[0] if len(forms) == 1 else None
        return _regular(lemma, inflection)


def augment_wordnet(
    texts: Iterable[str], path: str | os.PathLike[str] | WordNet, *, seed: int = 0, rate: float = 0.2
) -> list[str | None]:
    """Each text with some of its content words replaced by synonyms; None if there are none.

    The result depends only on the text and the seed. Casing is kept; capitalized words inside a text are assumed to
    be names and stay, as do words whose synonym does not fit the preceding "a" or "an".

    Args:
        texts: English.
        path: folder of the files that `WordNet` reads, or a loaded `WordNet`.
        seed: of the choice.
        rate: share of the replaceable words to replace, in (0, 1]; at least one.

    Raises:
        ValueError: `rate` is out of range.
    """
    if not 0 < rate <= 1:
        raise ValueError(f"rate={rate}: give a share in (0, 1]")
    wordnet = path if isinstance(path, WordNet) else WordNet(path)
    return [_augmented(text, wordnet, seed, rate) for text in texts]


def read_paraphrases(path: str | os.PathLike[str]) -> Iterator[tuple[str, list[str]]]:
    """Each text of a file with its paraphrases, in order of first appearance.

    Args:
        path: a file that `embedkit.training.data.readers.read` takes, with the columns ``text`` and
            ``paraphrase``, for example back-translations. A paraphrase equal to its text is skipped.

    Raises:
        ValueError: a row is wrong; the message names it.
    """
    table = read({"path": os.path.abspath(path), "columns": {"text": "text", "paraphrase": "paraphrase"}})
    found: dict[str, dict[str, None]] = {}
    for text, paraphrase in zip(table.texts("text"), table.texts("paraphrase"), strict=True):
        of_text = found.setdefault(text, {})
        if paraphrase != text:
            of_text[paraphrase] = None
    for text, paraphrases in found.items():
        yield text, list(paraphrases)


def _augmented(text: str, wordnet: WordNet, seed: int, rate: float) -> str | None:
    candidates: list[tuple[re.Match[str], list[str]]] = []
    before = ""
    for number, match in enumerate(_WORD.finditer(text)):
        word = match.group()
        if word.islower() or (word.isupper() and text.isupper()) or (number == 0 and word.istitle()):
            found = wordnet.synonyms(word.lower())
            if before in ("a", "an"):
                found = [synonym for synonym in found if (synonym[0] in "aeiou") == (before == "an")]
            if found:
                candidates.append((match, found))
        before = word.lower()
    if not candidates:
        return None
    digest = hashlib.blake2b(f"{seed}\0{text}".encode(), digest_size=8).digest()
    choose = random.Random(int.from_bytes(digest, "little"))
    chosen = choose.sample(range(len(candidates)), max(1, round(rate * len(candidates))))
    parts, end = [], 0
    for i in sorted(chosen):
        match, found = candidates[i]
        parts += [text[end : match.start()], _cased(choose.choice(found), match.group())]
        end = match.end()
    return "".join(parts) + text[end:]


def _cased(word: str, like: str) -> str:
    if like.islower():
        return word
    return word.upper() if like.isupper() and len(like) > 1 else word.capitalize()


def _verb_form(form: str) -> str:
    return "ing" if form.endswith("ing") else "past"


def _regular(lemma: str, inflection: str) -> str:
    consonant_y = lemma.endswith("y") and lemma[-2:-1] not in "aeiou"
    if inflection in ("plural", "third"):
        if consonant_y:
            return lemma[:-1] + "ies"
        return lemma + ("es" if lemma.endswith(("s", "x", "z", "ch", "sh")) else "s")
    if inflection == "ing":
        return (
            lemma[:-1] if lemma.endswith("e") and not lemma.endswith(("ee", "oe", "ye")) else lemma
        ) + "ing"
    if consonant_y:
        return lemma[:-1] + "ied"
    return lemma + ("d" if lemma.endswith("e") else "ed")
