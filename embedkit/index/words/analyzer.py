"""From texts to words: what is stored of them, and what a query asks for.

SQLite's FTS5 cuts words at everything but letters, digits and marks, and folds case and the accents of Latin letters.
Its tables are old: it takes newer emoji for letters and leaves newer capitals as they are. So texts that are not ASCII
are cut and lowered before, as queries are. What else FTS5 lacks is done before, too:

* Stems: FTS5's Porter stemmer for English, a Snowball stemmer (``snowballstemmer``) for other languages.
* Accents of Greek, which capitals lack (Αθήνα, ΑΘΗΝΑ), and ё, which many write as е.
* Scripts without spaces (Chinese, Japanese, Thai, Lao, Khmer, Burmese), and Korean, whose words carry particles: each
  run of their letters is stored as its overlapping pairs, 苹果汁 as 苹果 果汁. The last letter follows by itself, so
  that a query of a single letter, which asks for a prefix, finds every one.
* Words of any length: of a longer one, the first 8,192 letters count.
* Unicode: NFKC, so that full-width and composed letters are found by their usual forms; the vowel points of Arabic and
  Hebrew, soft hyphens, joiners and variation selectors are left out. Symbols that NFKC makes letters or digits of are
  words of their own: Java™ is java and tm, 3½ is 3, 1 and 2.
"""

from __future__ import annotations

import functools
import re
import sqlite3
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from itertools import islice, pairwise

from ...forking import fork_lock, keep_forever
from .languages import NONE, stop_words

__all__ = ["Analyzer", "Form", "analyzer", "create_table", "runs_and_words"]

Form = tuple[tuple[str, int], str]
"""A term of a query, after what the terms of other languages are told by: its word and a number."""

_MOST_WORDS = 512  # of a query, of which `Generation.asked` takes the rarest
_CACHED_STEMS = 65_536
_LONGEST = 8192  # letters of a word that are kept: FTS5 cuts it at 32,768 bytes, even within a letter
_MOST_MARKS = 1000  # of a letter in a script without spaces, so that pairs of them are shorter than that
_SEARCHED = 20_000  # characters of a query that its words are of, and of a text in which they are looked for
_CUT_AT_ONCE = 512  # of its words

# Without spaces between words; combining marks belong to the letter before them.
_UNSPACED = (
    "\u1100-\u11ff\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff"
    "\u3105-\u312f\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7a3\ud7b0-\ud7ff"
    "\uf900-\ufaff\U00020000-\U0003ffff"
)
_SOUTHEAST_ASIAN = (
    "\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ebd\u0ec0-\u0ece\u0edc-\u0edf\u1000-\u103f\u1050-\u108f\u109a-\u109f"
    "\u1780-\u17d3\u17d7\u17dc\u17dd\ua9e0-\ua9ef\ua9fa-\ua9fe\uaa60-\uaa7f"
)
_NARROW = "\u3131-\u318e\uff66-\uffdc"  # of which NFKC makes letters of the scripts above
_STACKERS = "\u1039\u17d2"  # the next consonant is written below the one before
_LEFT_OUT = re.compile(
    "[\u00ad\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u0640\u064b-\u065f\u0670\u06d6-\u06dc"
    "\u06df-\u06e8\u06ea-\u06ed\u08ca-\u08e1\u08e3-\u08ff\u180b-\u180f\u200d\ufe00-\ufe0f\U000e0100-\U000e01ef]"
)
_KEYCAP = "\u20e3"  # a mark, around the digit before it
_NO_ASCII_WORD = re.compile("(?:[^\\w ]|_)+")
_TURKISH_CAPITALS = str.maketrans({"I": "ı", "İ": "i"})  # of which str.lower makes other letters
# Small letters of Greek, and ё; some have marks that NFKC does not compose with them.
_ACCENTED = re.compile("[\u0390\u03ac-\u03b0\u03ca-\u03ce\u0451\u1f00-\u1fff][\u0300-\u0345]*")
_ANY_UNSPACED = re.compile(f"[{_UNSPACED}{_SOUTHEAST_ASIAN}]")


@functools.cache
def _marks() -> str:
    """All combining marks, as the inside of a character class."""
    assigned = (
        *range(0x300, 0x1F000),
        *range(0xE0100, 0xE01F0),
    )  # a tenth of all code points holds every mark
    return _ranges(point for point in assigned if unicodedata.category(chr(point))[0] == "M")


def _ranges(points: Iterable[int]) -> str:
    """Ascending code points, as the inside of a character class."""
    ranges: list[list[int]] = []
    for point in points:
        if ranges and point == ranges[-1][1] + 1:
            ranges[-1][1] = point
        else:
            ranges.append([point, point])
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in ranges)


@functools.cache
def _apart() -> re.Pattern[str]:
    """A symbol, fraction or number in a circle whose letters and digits (by NFKC) would stick to those beside it."""

    def sticks(one: str) -> bool:
        made = unicodedata.normalize("NFKC", one)
        if not any(letter.isalnum() and not _ANY_UNSPACED.match(letter) for letter in made):
            return False
        category = unicodedata.category(one)
        if category == "No":
            name = unicodedata.name(one)
            return "CIRCLED" in name or "FRACTION" in name
        return category[0] == "S"

    basic = _ranges(point for point in range(0x80, 0x10000) if sticks(chr(point)))
    return re.compile(f"[{basic}\U0001f100-\U0001f1ff]")  # of the others most, and few ranges are fast


@functools.cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    """A run of letters without spaces; a letter of it with its marks; what is between words of other scripts."""
    letters, marks = f"[{_UNSPACED}{_SOUTHEAST_ASIAN}]", _marks()
    unit = f"{letters}(?:[{_STACKERS}]{letters}|[{marks}]){{,{_MOST_MARKS}}}"
    return re.compile(f"(?:{unit})+"), re.compile(unit), re.compile(f"(?:[^\\w{marks} ]|_)+")


@functools.cache
def _written() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """In a text that is not folded: a run of letters without spaces; what is between words of other scripts."""
    letters, marks, out = f"{_UNSPACED}{_SOUTHEAST_ASIAN}{_NARROW}", _marks(), _LEFT_OUT.pattern[1:-1]
    run = f"[{letters}][{letters}{marks}{out}]*"
    return re.compile(run), re.compile(f"(?:(?:[^\\w{marks}{out} ]|[_{_KEYCAP}])[{out}]*)+")


def _stretches(run: str, pairs: frozenset[str], alone: tuple[str, ...]) -> Iterator[str]:
    """The longest stretches of ``run`` whose pairs of letters are all asked for, and its letters that are.

    Args:
        run: of letters without spaces, not folded.
        pairs: of letters of a folded query.
        alone: its letters that stand alone; with more marks, they are the same.
    """
    folded, spans = _folded_with_spans(run)
    letters = list(_patterns()[1].finditer(folded))
    first = 0
    for last, letter in enumerate(letters):
        after = letters[last + 1] if last + 1 < len(letters) else None
        if after and after.start() == letter.end() and letter[0] + after[0] in pairs:
            continue
        if first < last or letter[0].startswith(alone):
            yield run[spans[letters[first].start()][0] : spans[letter.end() - 1][1]]
        first = last + 1


def _folded_with_spans(written: str) -> tuple[str, list[tuple[int, int]]]:
    """``written`` folded, and for each of its letters the part of ``written`` of which it was made: begin and end."""
    folded = _folded(written)
    if folded == written:
        return folded, [(at, at + 1) for at in range(len(written))]
    normal = functools.partial(unicodedata.normalize, "NFKC")
    folded, spans, begin = "", [], 0
    for at in range(1, len(written) + 1):
        if at < len(written):
            one, before = written[at], written[begin:at]
            if _LEFT_OUT.match(one) or normal(before + one) != normal(before) + normal(one):
                continue  # goes with the letters before
        made = _folded(written[begin:at])
        folded += made
        spans += [(begin, at)] * len(made)
        begin = at
    return folded, spans


def _pairs(letters: list[str]) -> list[str]:
    return [one + two for one, two in pairwise(letters)]


def _stored_pairs(run: re.Match[str]) -> str:
    letters = _patterns()[1].findall(run[0])
    return f" {' '.join((*_pairs(letters), letters[-1]))} "


class _Cutter:
    """FTS5 in memory, to cut the words of queries as it cuts texts."""

    def __init__(self, tokenizer: str) -> None:
        self._tokenizer = tokenizer
        self._db: sqlite3.Connection | None = None
        self._lock = fork_lock(lose=self._lose)
        self._known: dict[str, list[str]] = {}

    def __call__(self, words: list[str]) -> list[list[str]]:
        """The terms of each word."""
        with self._lock:
            unknown = [word for word in words if word not in self._known]
            if unknown:
                if len(self._known) >= _CACHED_STEMS:
                    self._known.clear()
                    unknown = words
                self._known.update(zip(unknown, self._cut(unknown), strict=True))
            return [self._known[word] for word in words]

    def _lose(self) -> None:
        keep_forever(self._db)
        self._db = None

    def _cut(self, words: list[str]) -> list[list[str]]:
        if self._db is None:
            self._db = self._open()
        terms: list[list[str]] = [[] for _ in words]
        self._db.execute("BEGIN")
        try:
            self._db.executemany("INSERT INTO cut(rowid, word) VALUES (?, ?)", enumerate(words))
            for place, term in self._db.execute("SELECT doc, term FROM terms ORDER BY doc, offset"):
                if term:  # a mark by itself is a word without letters
                    terms[place].append(term)
        finally:
            self._db.execute("ROLLBACK")
        return terms

    def _open(self) -> sqlite3.Connection:
        db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        try:
            create_table(db, "cut", "word, content=''", self._tokenizer)
            db.execute("CREATE VIRTUAL TABLE terms USING fts5vocab(cut, instance)")
        except sqlite3.OperationalError as error:
            raise RuntimeError(
                f"the SQLite of this Python cannot cut the words of a query ({error}); search by meaning alone "
                "(hybrid=False, --no-hybrid)"
            ) from None
        return db


def create_table(db: sqlite3.Connection, table: str, columns: str, tokenizer: str) -> None:
    """Create an FTS5 table that cuts words by ``tokenizer`` (`sqlite3.OperationalError` if SQLite lacks FTS5)."""
    quoted = tokenizer.replace("'", "''")
    db.execute(f"CREATE VIRTUAL TABLE {table} USING fts5({columns}, tokenize='{quoted}')")


class Analyzer:
    """The words of one language. Thread-safe.

    Attributes:
        language: a name in `LANGUAGES`, or "none".
        tokenizer: for FTS5.
    """

    def __init__(self, language: str) -> None:
        """For ``language``.

        Raises:
            ImportError: the language needs a stemmer that is not installed.
        """
        self.language = language
        # unicode61 would cut at the vowel signs of Hindi, Thai and others
        cut = "unicode61 remove_diacritics 2 categories 'L* N* Co M*'"
        self.tokenizer = f"porter {cut}" if language == "english" else cut
        self._cut = _Cutter(self.tokenizer)
        self._stem = None if language in ("english", NONE) else _stemmer(language)
        self._stops = stop_words(language)
        self._turkish = language == "turkish"

    def text(self, text: str) -> str:
        """``text`` as it is given to FTS5."""
        if self._turkish:
            text = text.translate(_TURKISH_CAPITALS)
        if not text.isascii():
            text = _folded(text)
            if _ANY_UNSPACED.search(text):
                text = _patterns()[0].sub(_stored_pairs, text)
        elif self._stem is None:
            short = len(text) <= _LONGEST or all(len(piece) <= _LONGEST for piece in text.split())
            if short:
                return text  # FTS5 cuts and lowers ASCII just so
        words = _words_of(text)
        return " ".join(words if self._stem is None else map(self._stem, words))

    def words(self, query: str) -> list[str]:
        """The distinct words of the beginning of ``query``, before FTS5 cuts and stems them.

        Stop words are left out unless there is nothing else. Of a letter without spaces that stands alone every word
        is meant that begins with it; it ends in "*".
        """
        return [word for word, _ in self._words(query)]

    def _words(self, query: str) -> list[tuple[str, str]]:
        """`words`, each with what it was in ``query`` before Snowball stemmed it."""
        wanted: dict[str, str] = {}
        query = query[:_SEARCHED]
        if self._turkish:
            query = query.translate(_TURKISH_CAPITALS)
        text = query
        if not query.isascii():
            run, letter, _ = _patterns()
            text = _folded(query)
            for found in run.findall(text):
                wanted.update((one, one) for one in _pairs(letter.findall(found)) or [f"{found}*"])
            text = run.sub(" ", text)
        words = _words_of(text)
        telling = [one for one in words if one not in self._stops]
        if not telling and not wanted:
            telling = words
        for one in telling:
            wanted.setdefault(one if self._stem is None else self._stem(one), one)
        return list(wanted.items())[:_MOST_WORDS]

    def finder(self, query: str) -> Callable[[str], list[str]]:
        """Finds the words of the beginning of a text that the beginning of ``query`` asks for.

        Each is as it is written where it is first in the text. In scripts without spaces, it is a stretch whose pairs
        of letters are all in the query.
        """
        run, between = _written()
        words = self.words(query)
        unspaced = frozenset(one for one in words if _ANY_UNSPACED.match(one))
        alone = tuple(one.removesuffix("*") for one in unspaced if one.endswith("*"))
        letters = {one[0] for one in unspaced}
        terms = frozenset(self.terms(query)) - unspaced

        def found(text: str) -> list[str]:
            text = text[:_SEARCHED]
            found: dict[str, None] = {}
            if unspaced:
                written = unicodedata.is_normalized("NFKC", text)
                for one in run.findall(text):
                    if not written or not letters.isdisjoint(one):
                        found.update(dict.fromkeys(_stretches(one, unspaced, alone)))
            words = iter(dict.fromkeys(between.sub(" ", run.sub(" ", text)).split()))
            left = set(terms)
            while left and (some := list(islice(words, _CUT_AT_ONCE))):
                self._cut([cut for one in some for cut in self.words(one)])  # all at once, for what follows
                for one in some:
                    there = left.intersection(self.terms(one))
                    if there:
                        found[one] = None
                        left -= there
            return list(found)

        return found

    def terms(self, query: str) -> list[str]:
        """The words of ``query`` as they are stored; one that is there in two forms is twice in the list."""
        return [term for _, term in self.forms(query)]

    def forms(self, query: str) -> list[Form]:
        """The `terms` of ``query``."""
        words = self._words(query)
        cut = self._cut([word.removesuffix("*") for word, _ in words])
        return [
            ((given, number), f"{term}*" if word.endswith("*") else term)
            for (word, given), terms in zip(words, cut, strict=True)
            for number, term in enumerate(terms)
        ]


@functools.cache
def analyzer(language: str) -> Analyzer:
    """The `Analyzer` of ``language``, made once."""
    return Analyzer(language)


def runs_and_words(text: str) -> tuple[list[list[str]], list[str]]:
    """The runs of scripts without spaces in ``text``, each as its letters with their marks; and its other words."""
    run, letter, between = _patterns()
    text = _folded(text).lower()
    return [letter.findall(found) for found in run.findall(text)], between.sub(
        " ", run.sub(" ", text)
    ).split()


def _folded(text: str) -> str:
    text = _apart().sub(r" \g<0> ", text.replace(_KEYCAP, " "))
    return _LEFT_OUT.sub("", unicodedata.normalize("NFKC", text))


def _words_of(text: str) -> list[str]:
    """The words of a folded text or query in lower case, pairs of letters included."""
    lowered, between = text.lower(), _NO_ASCII_WORD
    if not text.isascii():
        lowered = _ACCENTED.sub(lambda letter: _unaccented(letter[0][0]), lowered)
        between = _patterns()[2]
    return [one[:_LONGEST] for one in between.sub(" ", lowered).split()]


@functools.cache
def _unaccented(letter: str) -> str:
    return unicodedata.normalize("NFD", letter)[0]


def _stemmer(language: str) -> Callable[[str], str]:
    try:
        import snowballstemmer
    except ImportError as error:
        raise ImportError(
            f"the stems of {language} words need snowballstemmer, which is not installed: "
            "pip install 'embedkit[cpu]'"
        ) from error
    stemmer = snowballstemmer.stemmer(language)
    lock = fork_lock()  # a Snowball stemmer keeps the word it works on

    @functools.lru_cache(_CACHED_STEMS)
    def stem(word: str) -> str:
        with lock:
            return str(stemmer.stemWord(word))

    return stem
