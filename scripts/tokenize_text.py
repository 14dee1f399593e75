#!/usr/bin/env python3
"""Writes the tokens of a text to a file that elixir-train --data reads.

    scripts/tokenize_text.py FOLDER TEXT... OUT

FOLDER  holds the model's tokenizer, as Hugging Face stores it (tokenizer.json and its like)
TEXT    one or more text files in UTF-8, taken as one after the other
OUT     the token file. Its header says the type of the tokens, the vocabulary and how many there are
        (models/token_format.h)

Needs transformers (pip install transformers). Each text is tokenised a part at a time, cut at line ends,
so that memory does not depend on its length; a part that a line end does not cut within 4 MiB is an error.
The tokenizer adds no special tokens, but --document-end adds its end-of-text token behind each file.
Exit codes: 0 written, 2 wrong command line or files, 3 transformers is missing.
"""

import argparse
import os
import struct
import sys
import time

MAGIC = b'ELXTOKEN'
HEADER_BYTES = 64
HEADER = '<8sII16sQQ16x'
PART_CHARS = 1 << 20
LONGEST_LINE_CHARS = 4 << 20
PROGRESS_EVERY_S = 2


class Refused(Exception):
    """What the user can mend, with the remedy."""


def parts_of(path):
    """The text of a file in parts of about PART_CHARS that end at line ends."""
    kept = ''
    try:
        with open(path, encoding='utf-8', newline='') as file:
            while text := file.read(PART_CHARS):
                kept += text
                end = kept.rfind('\n') + 1
                if end == 0 and len(kept) > LONGEST_LINE_CHARS:
                    raise Refused(f'{path}: no line end within {LONGEST_LINE_CHARS} characters; is it a text?')
                if end > 0:
                    yield kept[:end]
                    kept = kept[end:]
    except UnicodeDecodeError as failure:
        raise Refused(f'{path}: not UTF-8 ({failure.reason} at byte {failure.start}); convert it, as with '
                      'iconv -t UTF-8') from failure
    except OSError as failure:
        raise Refused(f'{path}: {failure.strerror}') from failure
    if kept:
        yield kept


def load_tokenizer(folder):
    if not os.path.isdir(folder):
        raise Refused(f'{folder}: no such folder; download the model first, as with\n'
                      f'  hf download {folder} --local-dir MODEL')
    try:
        from transformers import AutoTokenizer
    except ImportError as failure:
        print(f'tokenize_text: {failure}; install it: pip install transformers', file=sys.stderr)
        sys.exit(3)
    try:
        # Never from the network: the folder alone.
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, ImportError) as failure:
        raise Refused(f'{folder}: its tokenizer cannot be loaded: {failure}') from failure


def ids_of(tokenizer, text):
    return tokenizer(text, add_special_tokens=False, return_attention_mask=False, verbose=False)['input_ids']


class TokenWriter:
    def __init__(self, path, vocabulary):
        self.path = path
        self.vocabulary = vocabulary
        self.type, self.code = ('uint16', 'H') if vocabulary <= 1 << 16 else ('uint32', 'I')
        self.tokens = 0
        self.part = path + '.part'
        self.file = open(self.part, 'wb')
        self.file.write(bytes(HEADER_BYTES))

    def write(self, ids):
        self.file.write(struct.pack(f'<{len(ids)}{self.code}', *ids))
        self.tokens += len(ids)

    def finish(self):
        """The file has its name only once it is whole."""
        self.file.seek(0)
        self.file.write(struct.pack(HEADER, MAGIC, 1, HEADER_BYTES, self.type.encode(), self.vocabulary,
                                    self.tokens))
        self.file.close()
        os.replace(self.part, self.path)

    def drop(self):
        self.file.close()
        if os.path.exists(self.part):
            os.remove(self.part)


def run(arguments):
    tokenizer = load_tokenizer(arguments.folder)
    end = tokenizer.eos_token_id
    if arguments.document_end and end is None:
        raise Refused(f'{arguments.folder}: its tokenizer has no end-of-text token; leave out --document-end')
    writer = TokenWriter(arguments.output, len(tokenizer))
    next_note = time.monotonic() + PROGRESS_EVERY_S
    try:
        for path in arguments.text:
            for text in parts_of(path):
                writer.write(ids_of(tokenizer, text))
                if time.monotonic() >= next_note:
                    next_note = time.monotonic() + PROGRESS_EVERY_S
                    print(f'tokenize_text: {path}: {writer.tokens} tokens', file=sys.stderr)
            if arguments.document_end:
                writer.write([end])
        if writer.tokens == 0:
            raise Refused(f'{arguments.text[0]}: no token in it')
        writer.finish()
    except BaseException:
        writer.drop()
        raise
    print(f'{arguments.output}: {writer.tokens} tokens of {writer.type}, vocabulary {writer.vocabulary}')


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('folder', metavar='FOLDER')
    parser.add_argument('text', metavar='TEXT', nargs='+')
    parser.add_argument('output', metavar='OUT')
    parser.add_argument('--document-end', action='store_true', help='the end-of-text token behind each file')
    try:
        run(parser.parse_args())
    except (Refused, OSError) as failure:
        print(f'tokenize_text: {failure}', file=sys.stderr)
        return 2
    return 0


if __name__ == '__main__':
    sys.exit(main())
