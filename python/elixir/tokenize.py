"""Writes the tokens of texts to a file that elixir-train --data reads.

    python -m elixir.tokenize TOKENIZER TEXT... OUT
    python -m elixir.tokenize TOKENIZER --dataset NAME OUT

TOKENIZER  a folder with a tokenizer as Hugging Face stores it (tokenizer.json and its like), or a name that
           is in the hub's cache already
TEXT       one or more files in UTF-8; "-" is standard input. Each file is one text. Of JSON lines (.jsonl,
           .ndjson) each line is one, in the field that --field names
OUT        the token file. Its header says the type of the tokens, the vocabulary and how many there are
           (models/token_format.h). An older token file is replaced, and any other file is an error

examples:
  python -m elixir.tokenize Qwen3-0.6B book.txt book.tokens
  python -m elixir.tokenize Qwen3-0.6B --field body --document-end news.jsonl more.jsonl news.tokens
  zcat book.txt.gz | python -m elixir.tokenize Qwen3-0.6B - book.tokens
  python -m elixir.tokenize Qwen3-0.6B --dataset roneneldan/TinyStories --document-end stories.tokens

Each text is tokenised by itself; their tokens follow one another. The tokenizer adds no special tokens, but
--document-end adds its end-of-text token behind each text. Memory does not depend on a text's length: one of
more than 1 Mi characters is tokenised in parts. It is cut only where both sides keep the tokens of the whole
text; 4 Mi characters without such a place are an error.
Needs transformers (pip install transformers), and for --dataset also datasets.
Exit codes: 0 written, 2 wrong command line, 3 the disk is full, 4 a file cannot be used, 5 a package is missing.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterable
from typing import Any

from elixir import _command, _texts, _tokens
from elixir._command import Failure

NAME = 'elixir.tokenize'
PROGRESS_EVERY_S = 2
Path = str | os.PathLike[str]


class Progress:
    """A line on standard error every two seconds; on a terminal one line that changes."""

    def __init__(self):
        self.began = time.monotonic()
        self.next = self.began + PROGRESS_EVERY_S
        self.shown = False

    def tell(self, where, tokens):
        now = time.monotonic()
        if now < self.next:
            return
        self.next = now + PROGRESS_EVERY_S
        text = f'{NAME}: {where}: {tokens:,} tokens, {tokens / (now - self.began):,.0f} per second'
        if sys.stderr.isatty():
            print(f'\r\x1b[K{text}', end='', file=sys.stderr, flush=True)
            self.shown = True
        else:
            print(text, file=sys.stderr)

    def end(self):
        if self.shown:
            print(file=sys.stderr)


def tokenize(tokenizer: Any, texts: Path | Iterable[Path], out: Path, *, json_lines: bool = False, field: str = 'text',
             dataset: str = '', subset: str | None = None, split: str = 'train',
             document_end: bool = False) -> dict[str, Any]:
    """Writes the tokens of texts, then of a data set, to a token file.

    Args:
        tokenizer: a folder, or a name in the hub's cache, or a tokenizer of transformers.
        texts: the path of a text file or of JSON lines ("-": standard input), or several.
        out: the token file, which appears once it is whole.
        json_lines: every text is JSON lines, whatever its name.
        field: what holds the text in a line of JSON, or a row of the data set.
        dataset: a folder or a name that datasets.load_dataset() takes.
        subset, split: of the data set.
        document_end: adds the tokenizer's end-of-text token behind each document.

    Returns:
        {"path": of the file, "tokens": how many, "type": "uint16" or "uint32", "vocabulary": its size}

    Raises:
        elixir._command.Failure: a text cannot be read, there is no token in it, or the disk is full.
    """
    paths = [os.fspath(text) for text in ([texts] if isinstance(texts, (str, os.PathLike)) else texts)]
    out = os.fspath(out)
    _tokens.check_output(out, paths)
    if paths.count(_texts.STANDARD_INPUT) > 1:
        raise Failure('standard input ("-") can be read once; name it once', _command.BAD_ARGUMENT)
    if isinstance(tokenizer, (str, os.PathLike)):
        tokenizer = _tokens.load_tokenizer(os.fspath(tokenizer), NAME)
    end = [tokenizer.eos_token_id] if document_end else []
    if end == [None]:
        raise Failure('the tokenizer has no end-of-text token; leave out --document-end')

    def documents():
        for path in paths:
            yield from _texts.documents_of(path, field, json_lines)
        if dataset:
            yield from _texts.rows_of(dataset, subset, split, field)

    writer = _tokens.TokenWriter(out, _tokens.vocabulary_of(tokenizer))
    progress = Progress()
    read = 0
    try:
        for where, ids in _tokens.ids_of_documents(tokenizer, documents()):
            read += len(ids or ())
            writer.write(end if ids is None else ids)
            progress.tell(where, writer.tokens)
        if read == 0:
            raise Failure(f'{_texts.name_of(paths[0]) if paths else dataset}: no token in it')
        writer.finish()
    except BaseException:
        writer.drop()
        raise
    finally:
        progress.end()
    return {'path': out, 'tokens': writer.tokens, 'type': writer.type, 'vocabulary': writer.vocabulary}


def parser_of(program):
    parser = argparse.ArgumentParser(
        prog=program, description=__doc__, usage=f'{program} [options] TOKENIZER TEXT... OUT',
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('tokenizer', metavar='TOKENIZER')
    parser.add_argument('text', metavar='TEXT', nargs='*')
    parser.add_argument('output', metavar='OUT')
    parser.add_argument('--document-end', action='store_true', help='adds the end-of-text token behind each text')
    parser.add_argument('--json-lines', action='store_true', help='every TEXT is JSON lines, whatever its name')
    parser.add_argument('--field', metavar='NAME',
                        help='of JSON lines or a data set: what holds the text (default: text)')
    parser.add_argument('--dataset', metavar='NAME', default='',
                        help='a data set: a folder of files, one that save_to_disk() has written, or a name of the hub')
    parser.add_argument('--subset', metavar='NAME', help='of the data set, where it has several')
    parser.add_argument('--split', metavar='NAME', help='of the data set (default: train)')
    return parser


def check(given):
    """Options without their object would silently do nothing."""
    if not given.text and not given.dataset:
        raise Failure('there is no text: give TOKENIZER TEXT... OUT, or --dataset NAME', _command.BAD_ARGUMENT)
    for name in ('subset', 'split'):
        if getattr(given, name) is not None and not given.dataset:
            raise Failure(f'--{name} is for --dataset, which is not there', _command.BAD_ARGUMENT)
    rows = given.dataset or given.json_lines or any(map(_texts.is_json_lines, given.text))
    if given.field is not None and not rows:
        raise Failure('--field is for JSON lines (.jsonl, .ndjson, or --json-lines) and --dataset',
                      _command.BAD_ARGUMENT)


def main(words=None, program=f'python -m {NAME}') -> int:
    given = parser_of(program).parse_intermixed_args(words)

    def command():
        check(given)
        made = tokenize(given.tokenizer, given.text, given.output, json_lines=given.json_lines,
                        field=given.field or 'text', dataset=given.dataset, subset=given.subset,
                        split=given.split or 'train', document_end=given.document_end)
        print(f'{made["path"]}: {made["tokens"]} tokens of {made["type"]}, vocabulary {made["vocabulary"]}')
    return _command.run(NAME, command)


if __name__ == '__main__':
    sys.exit(main())
