"""Texts on which the package's own model learns from its teacher: from headings of 3 words to passages of 400 tokens.

    python benchmarks/builtin_texts.py --data DATA --packages DEBIAN --repositories CLONES -o texts.jsonl

DEBIAN holds the documentation packages of `PACKAGES`, each unpacked into a folder of its name (``dpkg-deb -x``); CLONES
the repositories of `REPOSITORIES`, each as the folder ``owner+name/repo``. What is missing is left out and named.
Beside the texts it writes their manifest: for each source the license, the texts and words.

Left out is every text that shares eight words in a row with a document or query of the development and test
collections (Cranfield, MED, CACM, the abstracts of SciFact) or equals a sentence of an STS test or a Quora question.
"""

import argparse
import json
import multiprocessing
import random
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from builtin_blocks import Block, blocks_of, dictionary, read_text
from common import records

#: Sources of `corpus_en` whose terms allow a model for everybody (see the data's README), and how they are joined.
SENTENCES = {
    "nli_snli": "CC BY-SA 4.0",
    "nli_snli_devtest": "CC BY-SA 4.0",
    "nli_mnli": "OANC and others, see MultiNLI",
    "nli_lingnli": "as MultiNLI",
    "nli_semiauto": "Wikipedia-based",
}
RUNNING = {"state_union": "public domain", "inaugural": "public domain"}

#: Repository -> commit, folders or endings to read, license at that commit.
REPOSITORIES = {
    **{
        f"openstax/osbooks-{name}": (commit, ".cnxml", "CC BY 4.0")
        for name, commit in {
            "american-government": "5c90dd7907dbf25f42266417e63ca3bb0012f031",
            "anatomy-physiology": "b0058a743bdd2cc08196abaaa7d5469970c0d80c",
            "astronomy": "63157f370b09c06a4cc12832384aaaf4de1ced3b",
            "business-ethics": "d64573e2807a1e7ba5d7dec8c36cd815a942b5c7",
            "business-law": "9d510e2126b7327a48d1e286f658dd0e83d47373",
            "chemistry-bundle": "32c719622fbb7a0ca729cd645c1df4cf4e7d5b3a",
            "college-physics-bundle": "f98d7a792138a6133fe7267d17e70aa04e9ccbed",
            "college-success-bundle": "4c04b87eb2753872c2d442fe9736859ddb27bb72",
            "entrepreneurship": "c1fa2c872ba07dc864c3aeb5a510b08b4f657288",
            "introduction-anthropology": "418eedd9bef21ec1a6fa1b472c0d82c084e35c70",
            "introduction-business": "78c9e7ad4e581d4ff98e78ea30214840e1fa7e1e",
            "introduction-intellectual-property": "be76c2d982080df077b6f7f7f784d0bbbc37ee8b",
            "introduction-philosophy": "d7bd4f0f520529b3ad83272448a9c2be25c9040a",
            "introduction-political-science": "4391e659b98eec43b71e8b3f08241215fb4dd4c4",
            "introduction-sociology": "d35d5f3bdac40f93607d600134865d4f13ce1f9b",
            "introductory-statistics-bundle": "50ec91749080bb040b57bb40c34337cacc994cba",
            "life-liberty-and-pursuit-happiness": "acb6fbe2744dd112187b6aff5946cfe969410fca",
            "microbiology": "ecf34dad129d686703780e87ab5aa2e59c577a6a",
            "physics": "ff78c7a8150fdda5ed1f786ac59ac25cdd532ef0",
            "prealgebra-bundle": "77a933c672e9c48c746eb802d588a9a7ddfd6e0d",
            "principles-economics-bundle": "cd31beb103fffbc09cc81ebfe117d8c40cc12d1a",
            "principles-finance": "3b7fc65c527ef51dbee24689691f19947fb72fb2",
            "psychology": "e061043bf2f9e86ace51c4e8dc9555160f60a99d",
            "university-physics-bundle": "db44eb99e9aa1d918fd8cf182f82ccdece9c7b11",
            "us-history": "046331cfcea0ac1b1a8fd461b3e6aae638845af3",
            "world-history": "3e17beda9130380d24be881e6d1942dfcc1be845",
            "writing-guide": "a6c95528390e3a2936f5bf87c49ac1a4995a0a6e",
        }.items()
    },
    "MicrosoftDocs/cpp-docs": ("HEAD", ".md", "CC BY 4.0"),
    "MicrosoftDocs/PowerShell-Docs": ("HEAD", ".md", "CC BY 4.0"),
    "MicrosoftDocs/windows-powershell-docs": ("HEAD", ".md", "CC BY 4.0"),
    "cockroachdb/docs": ("HEAD", ".md", "CC BY 4.0"),
    "ethereum/EIPs": ("HEAD", ".md", "CC0"),
    "rust-lang/book": ("HEAD", ".md", "MIT or Apache-2.0"),
}

#: Debian packages of documentation, all of Debian's main section: licenses that allow copying and changing.
_PACKAGES = (
    "anarchism apache2-doc apt-doc aptitude-doc-en bacula-doc cppreference-doc-en-html csound-doc "
    "debian-handbook debian-policy debian-reference-en developers-reference erlang-doc freebsd-manpages "
    "freedombox-doc-en ghc-doc ghostscript-doc gimp-help-en git-doc gnome-user-docs grass-doc icinga2-doc "
    "imagemagick-6-doc kicad-doc-en libreoffice-help-en-us libssl-doc linux-doc-6.1 llvm-16-doc manpages "
    "maxima-doc octave-doc perl-doc png-definitive-guide postgis-doc postgresql-doc-15 povray-doc "
    "python-astropy-doc python-biopython-doc python-dask-doc python-django-doc python-djangorestframework-doc "
    "python-pandas-doc python-scipy-doc python-skimage-doc python-sklearn-doc python-statsmodels-doc "
    "python-sympy-doc python3.11-doc racket-doc renpy-doc rust-doc scilab-doc shorewall-doc sqlite3-doc "
    "topcat-doc twisted-doc wireshark-doc"
)
PACKAGES = _PACKAGES.split()
DICTIONARIES = ("dict-gcide", "dict-foldoc", "dict-jargon", "dict-vera")
MOST = {"debian": 500_000, "wordnet": 60_000, "dictionaries": 80_000, "sentences": 190_000, "man": 120_000}
_FILES_OF_A_PACKAGE = 2500
_WORDS = re.compile(r"[a-z0-9]+")
_COMMON_WORDS = (
    "the of and to in a is that for it as was with be by on not he his are this or at from had have an "
    "they which you were all their has would what will there if can when so no its who may than any your "
    "more one use used we about into but do does how why where these some such also then them other two i "
    "she her him my"
)
_COMMON = frozenset(_COMMON_WORDS.split())
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"“(])")
_SHINGLE = 8


def texts_of(blocks: list[Block], seed: str) -> Iterator[str]:
    """Texts of one document, in lengths from a heading's to 300 words.

    Paragraphs are joined, and cut between sentences, to lengths drawn anew for each text; every paragraph is in one
    long and, in half of the documents, one short text. A heading stands alone, before its paragraph, or both. A
    question also stands alone.
    """
    rng = random.Random(seed)
    kept = [(heading, text) for heading, text in blocks if heading or _english(text)]
    for low, high, probability in ((40, 300, 1.0), (6, 40, 0.5)):
        if rng.random() < probability:
            yield from _pieces(kept, low, high, rng)
    for heading, text in kept:
        if heading and 3 <= len(text.split()) <= 20 and rng.random() < 0.8:
            yield text
        for sentence in () if heading else _SENTENCE.split(text):
            if is_question(sentence):
                yield sentence


def is_question(text: str) -> bool:
    """Whether it reads like a question that somebody asks."""
    return text.endswith("?") and 4 <= len(text.split()) <= 30


def _pieces(blocks: list[Block], low: int, high: int, rng: random.Random) -> Iterator[str]:
    def target() -> float:
        return low * (high / low) ** rng.random()

    words, parts, wanted = 0, [], target()
    for heading, text in blocks:
        if heading:
            if words >= 6:
                yield " ".join(parts)
            words, parts, wanted = 0, [], target()
            if rng.random() < 0.4 and low >= 40:
                parts = [text + "\n"]
            continue
        for sentence in _SENTENCE.split(text):
            count = len(sentence.split())
            if words >= 6 and words + count > wanted:
                yield " ".join(parts)
                words, parts, wanted = 0, [], target()
            if count <= 320:
                words += count
                parts.append(sentence)
    if words >= 6:
        yield " ".join(parts)


def _english(text: str) -> bool:
    """Whether a paragraph reads as English prose: enough letters, and enough common words if it is long."""
    letters = sum(c.isascii() and (c.isalpha() or c.isspace()) for c in text)
    if letters < 0.75 * len(text):
        return False
    words = text.lower().split()
    return len(words) >= 4 and (len(words) < 9 or sum(w in _COMMON for w in words) >= 0.18 * len(words))


def _from_git(job: tuple[str, str, str, str]) -> list[str]:
    folder, commit, _, part = job
    found = []
    names = part.split("\n")
    with subprocess.Popen(
        ["git", "-C", folder, "cat-file", "--batch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as git:
        assert git.stdin is not None and git.stdout is not None
        for name in names:
            git.stdin.write(f"{commit}:{name}\n".encode())
            git.stdin.flush()
            header = git.stdout.readline().split()
            if len(header) != 3:
                continue
            content = git.stdout.read(int(header[2])).decode("utf-8", "replace")
            git.stdout.read(1)
            found += texts_of(blocks_of(name, content), f"{folder.rsplit('/', 2)[-2]}/{name}")
        git.stdin.close()
    return found


def _from_files(paths: list[str]) -> list[str]:
    found = []
    for path in paths:
        try:
            content = read_text(Path(path))
        except (OSError, EOFError):
            continue
        if len(content) < 2_000_000:
            found += texts_of(blocks_of(path, content), path.partition("/usr/share/")[2] or path)
    return found


def repositories(folder: Path) -> Iterator[tuple[str, str, list[tuple[str, str, str, str]]]]:
    """Each repository that is there, its license and its jobs."""
    for name, (commit, ending, terms) in REPOSITORIES.items():
        clone = folder / name.replace("/", "+") / "repo"
        if not clone.exists():
            print(f"left out: {name} is not in {folder}", flush=True)
            continue
        listed = subprocess.run(
            ["git", "-C", str(clone), "ls-tree", "-r", "--name-only", commit],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        names = [one for one in listed if one.endswith(ending)]
        if name.startswith("cockroach"):  # the same page in each version
            newest = max(re.findall(r"/(v\d\d\.\d)/", " ".join(names)), key=lambda v: float(v[1:]))
            names = [one for one in names if f"/{newest}/" in one or not re.search(r"/v\d+\.\d+/", one)]
        jobs = [
            (str(clone), commit, ending, "\n".join(names[i : i + 200])) for i in range(0, len(names), 200)
        ]
        yield name, terms, jobs


def packages(folder: Path) -> Iterator[tuple[str, list[list[str]]]]:
    """Each documentation package that is there, and its files."""
    for name in PACKAGES:
        if not (folder / name).is_dir():
            print(f"left out: {name} is not in {folder}", flush=True)
            continue
        files = sorted(
            str(path)
            for path in (folder / name).rglob("*")
            if path.is_file() and not path.is_symlink() and _wanted(path)
        )
        sources = [path for path in files if re.search(r"\.rst(\.txt)?(\.gz)?$|\.pod$|\.[1-8](\.gz)?$", path)]
        files = sources if len(sources) > 0.3 * len(files) else files
        random.Random(name).shuffle(files)
        yield name, [files[i : i + 100] for i in range(0, min(len(files), _FILES_OF_A_PACKAGE), 100)]


def _wanted(path: Path) -> bool:
    text = str(path)
    if "/help/" in text and "/C/" not in text and "/en" not in text:
        return False
    if re.search(
        r"/(de|fr|es|ja|ko|ru|tr|pt-br|zh-cn|it|pl|nl|da)(-[A-Z]+|_[A-Z]+)?/|\.html\.(?!en)[a-z]", text
    ):
        return False
    if re.search(r"genindex|searchindex|/changelog|copyright|\.js|/src/", text):
        return False
    return bool(re.search(r"\.(html|xhtml|page|md|pod|rst|txt|[1-8])(\.en)?(\.gz)?$", text))


def manual_pages(folder: Path) -> list[list[str]]:
    """The machine's manual pages in English, without links to others."""
    files = [
        str(p) for s in range(1, 9) for p in sorted((folder / f"man{s}").glob("*.gz")) if not p.is_symlink()
    ]
    return [files[i : i + 200] for i in range(0, len(files), 200)]


def sentences(data: Path) -> Iterator[tuple[str, str, list[str]]]:
    """The sentences of `corpus_en` one by one, and its running text joined to passages."""
    by_source: dict[str, list[str]] = {}
    for row in records(data / "corpus_en/sentences_en.tsv.gz"):
        by_source.setdefault(row["source"], []).append(row["text"])
    for name, terms in SENTENCES.items():
        yield name, terms, by_source.get(name, [])
    for name, terms in RUNNING.items():
        lines: list[Block] = [(False, text) for text in by_source.get(name, [])]
        parts = [lines[i : i + 200] for i in range(0, len(lines), 200)]
        passages = [
            text for i, part in enumerate(parts) for k in (0, 1) for text in texts_of(part, f"{name}{i}/{k}")
        ]
        yield name, terms, passages


def glosses(data: Path) -> list[str]:
    """WordNet's synsets: a third of them as words and gloss, a third as the gloss alone, a third as a question."""
    found = []
    for number, row in enumerate(records(data / "wordnet/synsets.tsv.gz")):
        words = row["lemmas"].replace("_", " ").split("|")
        forms = (f"{', '.join(words)}: {row['gloss']}", row["gloss"], question(row["ss_type"], words, number))
        found.append(forms[number % 3])
    return found


#: By part of speech; {0} is the first word of a synset, {1} its last.
QUESTIONS = {
    "n": (
        "What is {0}?",
        "What does {0} mean?",
        "{0} definition",
        "What is the difference between {0} and {1}?",
    ),
    "v": (
        "How do you {0}?",
        "What does it mean to {0}?",
        "How can I {0} better?",
        "Is to {0} the same as to {1}?",
    ),
    "a": ("What does it mean to be {0}?", "How do I know if something is {0}?", "Is {0} the same as {1}?"),
    "r": ("What does {0} mean?", "How do I use {0} in a sentence?", "Can I say {1} instead of {0}?"),
}


def question(part: str, words: list[str], number: int) -> str:
    """A question about the words of a synset."""
    forms = [form for form in QUESTIONS["a" if part == "s" else part] if len(words) > 1 or "{1}" not in form]
    return forms[number // 3 % len(forms)].format(words[0], words[-1])


class Kept:
    """Which texts are new, and none of what models are measured on."""

    def __init__(self, data: Path) -> None:
        self._seen: set[int] = set()
        self._tests: set[int] = set()
        self.dropped: Counter[str] = Counter()
        for folder in ("retrieval", "retrieval_dev"):
            for name, columns in (("docs", ("title", "text")), ("queries", ("text",))):
                for row in records(data / folder / f"{name}.tsv.gz"):
                    for column in columns:
                        self._tests.update(_shingles(_key(row.get(column) or "")))
        for row in records(data / "corpus_en/sentences_en.tsv.gz"):
            if row["source"] == "scifact_abs":
                self._tests.update(_shingles(_key(row["text"])))
        pairs = [("sts_en/sts_en", ("sentence1", "sentence2")), ("quora/quora_pairs", ("text1", "text2"))]
        for name, columns in pairs:
            for row in records(data / f"{name}.tsv.gz"):
                self._seen.update(hash(tuple(_key(row[column]))) for column in columns)

    def __call__(self, text: str) -> bool:
        words = _key(text)
        if not 3 <= len(words) <= 340 or len(text) > 2400:
            return False
        key = hash(tuple(words))
        if key in self._seen:
            self.dropped["repeated or in a test"] += 1
            return False
        self._seen.add(key)
        if not self._tests.isdisjoint(_shingles(words)):
            self.dropped["shares eight words with a collection"] += 1
            return False
        return True


def _key(text: str) -> list[str]:
    return _WORDS.findall(text.lower())


def _shingles(words: list[str]) -> Iterable[int]:
    return (hash(tuple(words[i : i + _SHINGLE])) for i in range(len(words) - _SHINGLE + 1))


def main() -> None:
    """Write the texts, in random order, and their manifest."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="the data folder")
    parser.add_argument("--packages", type=Path, required=True, help="folder of unpacked Debian packages")
    parser.add_argument("--repositories", type=Path, required=True, help="folder of clones")
    parser.add_argument("--manual", type=Path, default=Path("/usr/share/man"), help="folder of manual pages")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    rng = random.Random(0)
    kept = Kept(options.data)
    texts: list[tuple[str, str]] = []
    terms_of: dict[str, str] = {}

    def add(name: str, terms: str, found: Iterable[str], most: int | None = None) -> None:
        new = [text for text in found if kept(text)]
        if most is not None and len(new) > most:
            new = rng.sample(new, most)
        terms_of[name] = terms
        texts.extend((name, text) for text in new)
        print(f"{name}: {len(new):,}; {len(texts):,} in all", flush=True)

    for name, terms, found in sentences(options.data):
        add(name, terms, found)
    add("wordnet", "WordNet license", glosses(options.data), MOST["wordnet"])
    for name in DICTIONARIES:
        files = (
            list((options.packages / name).rglob("*.dict.dz")) if (options.packages / name).is_dir() else []
        )
        entries = [text for file in files for [(_, text)] in dictionary(read_text(file))]
        add(name, "Debian main", entries, MOST["dictionaries"])
    with multiprocessing.Pool(options.processes) as pool:
        for name, terms, jobs in repositories(options.repositories):
            add(name, terms, (text for part in pool.imap(_from_git, jobs) for text in part))
        for name, parts in packages(options.packages):
            add(name, "Debian main", (t for part in pool.imap(_from_files, parts) for t in part), 40_000)
        pages = manual_pages(options.manual)
        add(
            "manual pages",
            "Debian main",
            (t for part in pool.imap(_from_files, pages) for t in part),
            MOST["man"],
        )
    rng.shuffle(texts)
    with options.output.open("w", encoding="utf-8") as file:
        for name, text in texts:
            file.write(json.dumps({"text": text, "source": name}, ensure_ascii=False) + "\n")
    counts, words = Counter(name for name, _ in texts), Counter[str]()
    for name, text in texts:
        words[name] += len(text.split())
    manifest = {
        "texts": len(texts),
        "words": words.total(),
        "left_out": dict(kept.dropped),
        "sources": {
            name: {"license": terms_of[name], "texts": counts[name], "words": words[name]}
            for name in terms_of
        },
    }
    options.output.with_suffix(".manifest.json").write_text(
        json.dumps(manifest, indent=1) + "\n", encoding="utf-8"
    )
    print(f"{options.output}: {len(texts):,} texts, {words.total():,} words; left out {dict(kept.dropped)}")


if __name__ == "__main__":
    main()
