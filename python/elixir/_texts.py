"""Documents of text files, JSON lines, standard input and data sets, one at a time and long ones in parts."""

import codecs
import collections
import contextlib
import itertools
import json
import os
import sys

from elixir import _command
from elixir._command import Failure, trying

STANDARD_INPUT = '-'
PART_CHARS = 1 << 20
MOST_LINE_BYTES = 64 << 20
JSON_LINES = ('.jsonl', '.ndjson')
ELSEWHERE = ('.parquet', '.arrow')  # what load_dataset reads

# where: what messages call it. parts: its text, one part after another. short: it is one part.
Document = collections.namedtuple('Document', 'where parts short')


def name_of(path):
    return 'standard input' if path == STANDARD_INPUT else path


def is_json_lines(path):
    return os.path.splitext(path)[1].lower() in JSON_LINES


def documents_of(path, field, json_lines):
    """Those of a file: the whole text, or each line of JSON."""
    if os.path.splitext(path)[1].lower() in ELSEWHERE:
        raise Failure(f'{path}: it is a data set\'s file; give its folder with --dataset')
    if json_lines or is_json_lines(path):
        yield from lines_of(path, field)
    else:
        yield Document(name_of(path), text_of(path), False)


@contextlib.contextmanager
def opened(path):
    try:
        if path == STANDARD_INPUT:
            yield sys.stdin.buffer
            return
        with open(path, 'rb') as file:
            yield file
    except OSError as failure:
        raise Failure(f'{name_of(path)}: {failure.strerror}') from failure


def text_of(path):
    """The text of a file, PART_CHARS bytes at a time, without a byte order mark."""
    decoder = codecs.getincrementaldecoder('utf-8')()
    begin = 0  # where the bytes that the decoder looks at begin in the file
    try:
        with opened(path) as file:
            data = file.read(PART_CHARS)
            if data.startswith(codecs.BOM_UTF8):
                begin = len(codecs.BOM_UTF8)
                data = data[begin:]
            kept = 0  # of them, from the read before
            while data:
                yield decoder.decode(data)
                begin += kept + len(data)
                kept = len(decoder.getstate()[0])
                begin -= kept
                data = file.read(PART_CHARS)
            decoder.decode(b'', final=True)
    except UnicodeDecodeError as failure:
        raise Failure(f'{name_of(path)}: not UTF-8 ({failure.reason} at byte {begin + failure.start}); convert it, as '
                      'with iconv -t UTF-8') from failure


def lines_of(path, field):
    """A document of each line, whose JSON object has it under `field`. Empty lines are left out."""
    with opened(path) as file:
        for number in itertools.count(1):
            line = file.readline(MOST_LINE_BYTES + 1)
            if not line:
                return
            where = f'{name_of(path)}: line {number}'
            if len(line) > MOST_LINE_BYTES:
                raise Failure(f'{where} has more than {MOST_LINE_BYTES >> 20} MiB; is each object on a line of its '
                              'own?')
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            if line.isspace():
                continue
            try:
                row = json.loads(line.decode())
            except UnicodeDecodeError as failure:
                raise Failure(f'{where} is not UTF-8 ({failure.reason})') from failure
            except (ValueError, RecursionError) as failure:
                raise Failure(f'{where} is not JSON ({failure})') from failure
            yield Document(where, (text_in(row, field, where),), True)


def text_in(row, field, where):
    if not isinstance(row, dict):
        raise Failure(f'{where} is no JSON object such as {{"{field}": "..."}}')
    if field not in row:
        known = ', '.join(repr(name) for name in itertools.islice(row, 20)) or 'none'
        raise Failure(f'{where} has no field {field!r}; name the one with the text: --field NAME (its fields: {known})')
    text = row[field]
    if not isinstance(text, str):
        raise Failure(f'{where}: field {field!r} is no text ({type(text).__name__}); name another one: --field NAME')
    try:
        text.encode()
    except UnicodeEncodeError as failure:
        raise Failure(f'{where}: field {field!r} has half a surrogate pair at character {failure.start}') from failure
    return text


def rows_of(dataset, subset, split, field):
    """A document of each row of a data set: a folder, one that save_to_disk() has written, or a name of the hub."""
    rows = enumerate(opened_dataset(dataset, subset, split))
    while True:
        number, row = trying(f'{dataset}: it cannot be read', next, rows, (None, None))
        if number is None:
            return
        where = f'{dataset}: row {number}'
        yield Document(where, (text_in(row, field, where),), True)


def opened_dataset(dataset, subset, split):
    datasets = _command.need('datasets', '--dataset')
    stored = [name for name in ('state.json', 'dataset_dict.json') if os.path.isfile(os.path.join(dataset, name))]
    if not stored:
        return trying(f'{dataset}: it cannot be opened', datasets.load_dataset, dataset, subset, split=split,
                      streaming=True)
    found = trying(f'{dataset}: it cannot be opened', datasets.load_from_disk, dataset)
    if isinstance(found, datasets.DatasetDict):
        if split not in found:
            raise Failure(f'{dataset}: it has no split {split!r}; name one with --split ({", ".join(found)})')
        found = found[split]
    return found
