#!/usr/bin/env python3
"""Measures how hard the project's texts are to read, and names the sentences to change.

  scripts/language.py                     one line per file: words, long sentences, leaning openings
  scripts/language.py README.md           the sentences, words and table cells of one file to change
  scripts/language.py --check             exit 1 if a file is over a limit
  scripts/language.py --headers ...       comments of C++ headers instead of Markdown pages
  scripts/language.py --help-texts ...    what the programs' --help prints
  scripts/language.py --messages ...      errors and log lines of the C++ sources, for old words alone

The rules are those of CONTRIBUTING.md, "How to write". A file of fewer than 20 sentences may have
one leaning and one long sentence.
"""

import argparse
import pathlib
import re
import subprocess
import sys
from dataclasses import dataclass, field

import figures

ROOT = pathlib.Path(__file__).resolve().parent.parent

MEAN_WORDS_MAX = 19
LONG_WORDS = 30
LONG_SHARE_MAX = 0.08
LEANING_SHARE_MAX = 0.03
CELL_WORDS_MAX = 15

LEANING = re.compile(r"^(what|where|who|whose|of|that|which|the same)\b", re.IGNORECASE)

# Each pattern with the words to use in its place.
OLD_WORDS = {
    r"mend(s|ed|ing)?": "fix",
    r"refus(e|es|ed|ing|al|als)": "reject, return an error",
    r"but for": "except",
    r"meanwhile": "while",
    r"lack(s|ed|ing)?": "missing, does not have",
    r"(is|are|was|were|be|been) told": "gets an error, learns",
    r"(gone|goes|going|went) on": "resume, continue",
    r"(where|there|here)(by|in|of|upon|to|with|fore)": "by this, in it",
    r"(th|wh)ence": "from there",
    r"hence": "so",
    r"whilst": "while",
    r"amongst": "among",
    r"upon": "on",
    r"lest": "so that ... not",
    r"ere|unto|nought|aught": "before, to, nothing",
    r"shall": "will, must",
    r"as it were": "(delete)",
    r"so as to": "to",
    r"it is (he|she|they|those) (who|that)": "(subject first)",
}
OLD = {re.compile(rf"\b({pattern})\b", re.IGNORECASE): use for pattern, use in OLD_WORDS.items()}

# More of them for messages.
OLD_IN_MESSAGES = OLD | {
    re.compile(r"\b(?<!there )((is|are) no)\b(?! (longer|more|room)\b)", re.IGNORECASE): "is not a",
    re.compile(r"\b(whom|of whose|anew)\b", re.IGNORECASE): "who, whose, again",
}

# A point after these ends no sentence.
ABBREVIATIONS = re.compile(r"\b(e\.g|i\.e|etc|vs|cf|Fig|Eq|No|approx|al|St)\.$", re.IGNORECASE)


@dataclass
class Measure:
    """What one text holds."""

    sentences: list[str] = field(default_factory=list)
    cells: list[str] = field(default_factory=list)
    open_lines: list[str] = field(default_factory=list)  # of a paragraph that has not ended
    messages: list[str] = field(default_factory=list)  # of C++ sources; only their words count

    def end_paragraph(self) -> None:
        self.sentences += sentences(" ".join(self.open_lines))
        self.open_lines.clear()

    @property
    def mean(self) -> float:
        return sum(words(s) for s in self.sentences) / max(1, len(self.sentences))

    @property
    def long(self) -> list[str]:
        return [s for s in self.sentences if words(s) > LONG_WORDS]

    @property
    def leaning(self) -> list[str]:
        return [s for s in self.sentences if LEANING.match(s)]

    @property
    def wide_cells(self) -> list[str]:
        return [c for c in self.cells if words(c) > CELL_WORDS_MAX]

    @property
    def old(self) -> list[tuple[str, str, str]]:
        """(words found, words to use, sentence)"""
        return [
            (found.group(0), use, text)
            for texts, old_words in ((self.sentences + self.cells, OLD), (self.messages, OLD_IN_MESSAGES))
            for text in texts
            for pattern, use in old_words.items()
            for found in pattern.finditer(text)
        ]

    def faults(self) -> list[str]:
        """The limits that this text breaks, one line each."""
        count = max(1, len(self.sentences))
        faults = []
        if self.mean > MEAN_WORDS_MAX:
            faults.append(f"{self.mean:.1f} words a sentence; the limit is {MEAN_WORDS_MAX}")
        if len(self.long) > max(1, LONG_SHARE_MAX * count):
            faults.append(
                f"{len(self.long)} of {count} sentences have more than {LONG_WORDS} words; the limit is "
                f"{LONG_SHARE_MAX:.0%}"
            )
        if len(self.leaning) > max(1, LEANING_SHARE_MAX * count):
            faults.append(
                f"{len(self.leaning)} of {count} sentences begin with What, Where, Who, Whose, Of, That, "
                f"Which or The same; the limit is {LEANING_SHARE_MAX:.0%}"
            )
        if self.wide_cells:
            faults.append(f"{len(self.wide_cells)} table cells have more than {CELL_WORDS_MAX} words")
        if self.old:
            faults.append(f"{len(self.old)} words of old English: {sorted({o[0].lower() for o in self.old})}")
        return faults


def words(text: str) -> int:
    return len(re.findall(r"[^\s]*\w[^\s]*", text))


def plain(text: str) -> str:
    """Markdown's marks removed; code spans become one word."""
    text = re.sub(r"<!--.*?-->", " ", text, flags=re.DOTALL)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", " ", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"(`+).+?\1", "code", text, flags=re.DOTALL)
    text = re.sub(r"<[^<>\n]+>", " ", text)
    text = re.sub(r'"[^"\n]{1,200}"', "quotation", text)  # a program's words, or a term
    text = re.sub(r"[*_]{1,3}(?=\S)|(?<=\S)[*_]{1,3}", "", text)
    return re.sub(r"\s+", " ", text).strip()


def sentences(paragraph: str) -> list[str]:
    pieces: list[str] = []
    for piece in re.split(r"(?<=[.!?:;])[\")]*\s+(?=[\"(A-Z0-9])", plain(paragraph)):
        # Numbers and names in lower case go on with the sentence; so does what follows a colon.
        if pieces and (ABBREVIATIONS.search(pieces[-1]) or pieces[-1].endswith((":", ";"))):
            pieces[-1] += " " + piece
        else:
            pieces.append(piece)
    return [p for p in pieces if words(p) > 2]


def measure_markdown(text: str) -> Measure:
    """Prose and cells of tables. Code blocks and headings are left out."""
    measure = Measure()
    fence = ""
    for line in re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL).splitlines():
        stripped = line.strip()
        mark = re.match(r"^(```+|~~~+)", stripped)
        if fence:
            if mark and stripped.startswith(fence):
                fence = ""
            continue
        if mark:
            measure.end_paragraph()
            fence = mark.group(1)
        elif not stripped or stripped.startswith("#"):
            measure.end_paragraph()
        elif stripped.startswith("|"):
            measure.end_paragraph()
            if not re.fullmatch(r"[|\s:-]+", stripped):
                cells = re.split(r"(?<!\\)\|", re.sub(r"`[^`]*`", "code", stripped).strip("|"))
                measure.cells += [plain(cell) for cell in cells if cell.strip()]
        else:
            if re.match(r"^([*+-]|\d+[.)])\s", stripped):
                measure.end_paragraph()
                stripped = re.sub(r"^([*+-]|\d+[.)])\s+", "", stripped)
            measure.open_lines.append(re.sub(r"^>\s*", "", stripped))
    measure.end_paragraph()
    return measure


def measure_header(text: str) -> Measure:
    """The comments of a C++ header; each run of comment lines is a paragraph, and so is a `///<`."""
    measure = Measure()
    for line in text.splitlines():
        whole = re.match(r"^\s*//+<?\s?(.*)$", line)
        if whole:
            body = whole.group(1).strip()
            if not body or re.match(r"^(NOLINT|clang-format|@|\\|[-*]\s|={3})", body):
                measure.end_paragraph()
            measure.open_lines.append(re.sub(r"^([-*]\s+|[@\\]\w+\s*)", "", body))
            continue
        measure.end_paragraph()
        beside = re.search(r'(?<![:"\'/])//+<?\s?([A-Za-z(].*)$', line)
        if beside and not beside.group(1).startswith(("NOLINT", "namespace")):
            measure.sentences += sentences(beside.group(1))
    measure.end_paragraph()
    return measure


def measure_help(text: str) -> Measure:
    """What `--help` prints: the meaning of each flag, to the right of its name or below it, and the prose."""
    measure = Measure()
    for line in text.splitlines():
        entry = re.match(r"^  (-\S|\S+  )", line)
        example = re.match(r"^ {2,8}\S", line) and not entry
        if not line.strip() or re.match(r"^(Usage: .*|[A-Z][\w ]*:)$", line) or example:
            measure.end_paragraph()
            continue
        if entry:
            measure.end_paragraph()
            meaning = re.split(r"\s{2,}", line.strip(), maxsplit=1)
            line = meaning[1] if len(meaning) > 1 else ""
        if line.strip():
            measure.open_lines.append(line.strip())
    measure.end_paragraph()
    return measure


LITERAL = r'"(?:[^"\\\n]|\\.)*"'
LITERALS = re.compile(rf"{LITERAL}(?:\s*\n\s*{LITERAL})*")  # the compiler joins them


def message_in(literals: str) -> str:
    """The text of LITERALS if it is a message, which has three words or more; else ''."""
    text = "".join(part[1:-1] for part in re.findall(LITERAL, literals))
    return text if words(text) > 2 else ""


def measure_messages(text: str) -> Measure:
    """Messages alone, without comments."""
    code = re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE)
    return Measure(messages=[message for message in map(message_in, LITERALS.findall(code)) if message])


def message_sources() -> list[pathlib.Path]:
    """C++ files of the product."""
    return [
        path for pattern in ("*.h", "*.cpp", "*.cu") for path in tracked(pattern)
        if not name_of(path).startswith(figures.OUTSIDE)
    ]


def help_texts() -> list[tuple[str, str]]:
    """(program, what its --help prints), from docs/flags.md, which a test holds against the programs."""
    text = (ROOT / "docs" / "flags.md").read_text(encoding="utf-8")
    return re.findall(r"^## ([^\n]+)\n\n[^\n]*\n\n```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def tracked(pattern: str) -> list[pathlib.Path]:
    out = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", pattern],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout
    return [ROOT / name for name in sorted(set(out.split("\0"))) if name and (ROOT / name).is_file()]


def name_of(path: pathlib.Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def measure_file(path: pathlib.Path) -> Measure:
    text = path.read_text(encoding="utf-8")
    return measure_header(text) if path.suffix == ".h" else measure_markdown(text)


def show(measure: Measure) -> None:
    for title, texts in (
        ("leaning", measure.leaning),
        (f"over {LONG_WORDS} words", measure.long),
        (f"cell over {CELL_WORDS_MAX} words", measure.wide_cells),
    ):
        for text in texts:
            print(f"  {title}: {text}")
    for found, use, text in measure.old:
        print(f"  '{found}' (use: {use}): {text}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0], formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=__doc__.split("\n\n", 1)[1],
    )
    parser.add_argument("files", nargs="*", type=pathlib.Path, help="files to measure (default: all)")
    parser.add_argument("--headers", action="store_true", help="comments of C++ headers, not pages")
    parser.add_argument("--help-texts", action="store_true", help="what the programs' --help prints, not pages")
    parser.add_argument("--messages", action="store_true", help="errors and log lines of C++ sources, not pages")
    parser.add_argument("--check", action="store_true", help="exit 1 if a file is over a limit")
    options = parser.parse_args()

    paths = [p.resolve() for p in options.files] or tracked("*.h" if options.headers else "*.md")
    if options.help_texts:
        named = [(f"{program} --help", measure_help(text)) for program, text in help_texts()]
    elif options.messages:
        sources = [p.resolve() for p in options.files] or message_sources()
        named = [(name_of(path), measure_messages(path.read_text(encoding="utf-8"))) for path in sources]
    else:
        named = [(name_of(path), measure_file(path)) for path in paths]
    total, failed = Measure(), 0
    for name, measure in named:
        total.sentences += measure.sentences
        total.cells += measure.cells
        faults = measure.faults()
        failed += bool(faults)
        if options.files or not options.check:
            count = max(1, len(measure.sentences))
            print(
                f"{name}: {len(measure.sentences)} sentences, {measure.mean:.1f} words, "
                f"{len(measure.long) / count:.1%} long, {len(measure.leaning) / count:.1%} leaning, "
                f"{len(measure.wide_cells)} wide cells, {len(measure.old)} old words"
            )
        for fault in faults:
            print(f"{name}: {fault}", file=sys.stderr)
        if options.files or (options.help_texts and not options.check):
            show(measure)
    count = max(1, len(total.sentences))
    print(
        f"all: {len(total.sentences)} sentences, {total.mean:.1f} words, {len(total.long) / count:.1%} long, "
        f"{len(total.leaning) / count:.1%} leaning"
    )
    if failed:
        print(f"{failed} files are over a limit; scripts/language.py FILE names the sentences", file=sys.stderr)
    return 1 if options.check and failed else 0


if __name__ == "__main__":
    sys.exit(main())
