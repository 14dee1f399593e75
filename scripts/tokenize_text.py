#!/usr/bin/env python3
"""Writes the tokens of a text to a file that elixir-train --data reads.

    scripts/tokenize_text.py FOLDER TEXT... OUT

FOLDER  holds the model's tokenizer, as Hugging Face stores it (tokenizer.json and its like)
TEXT    one or more text files in UTF-8. Each is tokenised by itself; their tokens follow one another
OUT     the token file. Its header says the type of the tokens, the vocabulary and how many there are
        (models/token_format.h). An older token file is replaced, and any other file is an error

Needs transformers (pip install transformers). A text of more than 1 Mi characters is tokenised in parts, so
that memory does not depend on its length. It is cut only where both sides keep the tokens of the whole text;
4 Mi characters without such a place are an error.
The tokenizer adds no special tokens, but --document-end adds its end-of-text token behind each file.
Exit codes: 0 written, 2 wrong command line or files, 3 transformers is missing.
"""

import argparse
import codecs
import os
import struct
import sys
import time

MAGIC = b'ELXTOKEN'
HEADER_BYTES = 64
HEADER = '<8sII16sQQ16x'
PART_CHARS = 1 << 20
LONGEST_PART_CHARS = 4 << 20
# The tokens at a cut depend on at most so many characters on each side of it.
AROUND_CHARS = 1 << 12
MOST_TRIES = 256
PROGRESS_EVERY_S = 2


class Refused(Exception):
    """What the user can fix, with the remedy."""


def text_of(path):
    """The text of a file, PART_CHARS bytes at a time, without a byte order mark."""
    decoder = codecs.getincrementaldecoder('utf-8')()
    begin = 0  # where the bytes that the decoder looks at begin in the file
    try:
        with open(path, 'rb') as file:
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
        raise Refused(f'{path}: not UTF-8 ({failure.reason} at byte {begin + failure.start}); convert it, as with '
                      'iconv -t UTF-8') from failure
    except OSError as failure:
        raise Refused(f'{path}: {failure.strerror}') from failure


def trying(what, call, *arguments, **named):
    """Tokenizers are code of others, which fails with errors of any type, Rust's panics among them."""
    try:
        return call(*arguments, **named)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as failure:
        raise Refused(f'{what}: {type(failure).__name__}: {failure}') from failure


def load_tokenizer(folder):
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise Refused(f'{folder}: not a folder; the first argument is the folder of the tokenizer')
    if not os.path.isdir(folder):
        raise Refused(f'{folder}: no such folder; download the model first, as with\n'
                      f'  hf download {folder} --local-dir MODEL')
    try:
        from transformers import AutoTokenizer
    except Exception as failure:
        print(f'tokenize_text: {failure}; install it: pip install transformers', file=sys.stderr)
        sys.exit(3)
    # Never from the network: the folder alone.
    return trying(f'{folder}: its tokenizer cannot be loaded', AutoTokenizer.from_pretrained, folder,
                  local_files_only=True)


def ids_of(tokenizer, text):
    return trying('the tokenizer fails', tokenizer, text, add_special_tokens=False, return_attention_mask=False,
                  verbose=False)['input_ids']


def ids_after(tokenizer, before, text):
    """The tokens of `text` where `before` stands before it; None if it changes the tokens of `before`."""
    first = ids_of(tokenizer, before) if before else []
    both = ids_of(tokenizer, before + text)
    return both[len(first):] if both[:len(first)] == first else None


def cut_of(tokenizer, text):
    """The last place in `text` where the text can be cut; 0 if there is none.

    Only the two ends of words are tried. Within a word, or a run of spaces, tokens may depend on all of it.
    """
    tries = 0
    for cut in range(len(text) - AROUND_CHARS, AROUND_CHARS, -1):
        if text[cut - 1].isspace() == text[cut].isspace():
            continue
        around = text[cut - AROUND_CHARS:cut], text[cut:cut + AROUND_CHARS]
        if ids_after(tokenizer, *around) is not None:
            return cut
        tries += 1
        if tries == MOST_TRIES:
            break
    return 0


def parts_of(tokenizer, path):
    """Each part of a text, with what stands before it."""
    before = text = ''
    for more in text_of(path):
        text += more
        if len(text) <= PART_CHARS:
            continue
        cut = cut_of(tokenizer, text)
        if cut > 0:
            yield before, text[:cut]
            before, text = text[cut - AROUND_CHARS:cut], text[cut:]
        elif len(text) > LONGEST_PART_CHARS:
            raise Refused(f'{path}: {LONGEST_PART_CHARS} characters without a place at which it can be cut and keep '
                          'its tokens; is it a text? Break its lines')
    if text:
        yield before, text


def ids_by_parts(tokenizer, path):
    for before, text in parts_of(tokenizer, path):
        ids = ids_after(tokenizer, before, text)
        if ids is None:
            raise Refused(f'{path}: its tokens depend on more than {AROUND_CHARS} characters before them; '
                          'split it into files')
        yield ids


def vocabulary_of(tokenizer):
    """Each token is below it. Ids may have gaps."""
    return max(len(tokenizer), max(tokenizer.get_vocab().values(), default=0) + 1)


def check_output(path, texts):
    """A forgotten OUT must not cost the last text."""
    folder = os.path.dirname(path) or '.'
    if not os.path.isdir(folder):
        raise Refused(f'{folder}: no such folder; make it first, as with mkdir -p {folder}')
    if not os.path.exists(path):
        return
    remedy = 'the last argument is the token file to write, so name a new file'
    if any(os.path.exists(text) and os.path.samefile(text, path) for text in texts):
        raise Refused(f'{path}: it is one of the texts; {remedy}')
    if not os.path.isfile(path):
        raise Refused(f'{path}: it is not an ordinary file; {remedy}')
    with open(path, 'rb') as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise Refused(f'{path}: it exists and is not a token file; {remedy}, or remove this one')


class TokenWriter:
    def __init__(self, path, vocabulary):
        self.path = path
        self.vocabulary = vocabulary
        self.type, self.code = ('uint16', 'H') if vocabulary <= 1 << 16 else ('uint32', 'I')
        self.tokens = 0
        self.part = path + '.part'
        try:
            self.file = open(self.part, 'xb')
        except FileExistsError as failure:
            raise Refused(f'{self.part}: it exists; another run may write it. If none does, remove it') from failure
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
    check_output(arguments.output, arguments.text)
    tokenizer = load_tokenizer(arguments.folder)
    end = tokenizer.eos_token_id
    if arguments.document_end and end is None:
        raise Refused(f'{arguments.folder}: its tokenizer has no end-of-text token; leave out --document-end')
    writer = TokenWriter(arguments.output, vocabulary_of(tokenizer))
    next_note = time.monotonic() + PROGRESS_EVERY_S
    try:
        for path in arguments.text:
            for ids in ids_by_parts(tokenizer, path):
                writer.write(ids)
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


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('folder', metavar='FOLDER')
    parser.add_argument('text', metavar='TEXT', nargs='+')
    parser.add_argument('output', metavar='OUT')
    parser.add_argument('--document-end', action='store_true', help='the end-of-text token behind each file')
    try:
        run(parser.parse_args(words))
    except OSError as failure:
        print(f'tokenize_text: {failure.filename or "the token file"}: {failure.strerror}', file=sys.stderr)
        return 2
    except Refused as failure:
        print(f'tokenize_text: {failure}', file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == '__main__':
    sys.exit(main())
