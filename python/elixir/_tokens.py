"""The tokens of documents by a tokenizer of Hugging Face, and the token file that holds them."""

import os
import struct

from elixir import _command, _texts
from elixir._command import Failure, trying

MAGIC = b'ELXTOKEN'  # models/token_format.h has the format
HEADER_BYTES = 64
HEADER = '<8sII16sQQ16x'
LONGEST_PART_CHARS = 4 << 20
# The tokens at a cut depend on at most so many characters on each side of it.
AROUND_CHARS = 1 << 12
MOST_TRIES = 256
BATCH_DOCUMENTS = 1000


def load_tokenizer(place, user):
    """That of a folder, of its tokenizer.json, or of a name in the hub's cache. Never from the network."""
    if os.path.basename(place) == 'tokenizer.json' and os.path.isfile(place):
        place = os.path.dirname(os.path.abspath(place))
    if os.path.exists(place) and not os.path.isdir(place):
        raise Failure(f'{place}: not a folder; the first argument is the folder of the tokenizer')
    auto = _command.need('transformers', user).AutoTokenizer
    if os.path.isdir(place):
        return trying(f'{place}: its tokenizer cannot be loaded', auto.from_pretrained, place, local_files_only=True)
    try:
        return auto.from_pretrained(place, local_files_only=True)
    except Exception as failure:
        raise Failure(f'{place}: no such folder, and no such tokenizer in the hub\'s cache; download the model first, '
                      f'as with\n  hf download {place} --local-dir MODEL') from failure


def vocabulary_of(tokenizer):
    """Each token is below it. Ids may have gaps."""
    return max(len(tokenizer), max(tokenizer.get_vocab().values(), default=0) + 1)


def ids_of(tokenizer, text):
    """The tokens of a text; of a list of texts, a list of theirs."""
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


def parts_of(tokenizer, document):
    """Each part of a document, with what stands before it."""
    before = text = ''
    for more in document.parts:
        text += more
        while len(text) > _texts.PART_CHARS:
            cut = cut_of(tokenizer, text[:LONGEST_PART_CHARS])
            if cut == 0:
                break
            yield before, text[:cut]
            before, text = text[cut - AROUND_CHARS:cut], text[cut:]
        if len(text) > LONGEST_PART_CHARS:
            raise Failure(f'{document.where}: {LONGEST_PART_CHARS} characters without a place at which it can be cut '
                          'and keep its tokens; is it a text? Break its lines')
    if text:
        yield before, text


def ids_by_parts(tokenizer, document):
    for before, text in parts_of(tokenizer, document):
        ids = ids_after(tokenizer, before, text)
        if ids is None:
            raise Failure(f'{document.where}: its tokens depend on more than {AROUND_CHARS} characters before them; '
                          'split it into files')
        yield ids


def is_short(document):
    return document.short and len(document.parts[0]) <= _texts.PART_CHARS


def ids_of_documents(tokenizer, documents):
    """(where, tokens) in the documents' order, and (where, None) at each document's end."""
    def of_batch():  # tokenizers take many texts at once, with a thread per core
        texts = [document.parts[0] for document in batch]
        for document, ids in zip(batch, ids_of(tokenizer, texts) if texts else ()):
            yield document.where, ids
            yield document.where, None

    batch, chars = [], 0
    for document in documents:
        if is_short(document):
            batch.append(document)
            chars += len(document.parts[0])
            if len(batch) < BATCH_DOCUMENTS and chars < _texts.PART_CHARS:
                continue
            yield from of_batch()
        else:
            yield from of_batch()
            for ids in ids_by_parts(tokenizer, document):
                yield document.where, ids
            yield document.where, None
        batch, chars = [], 0
    yield from of_batch()


def check_output(path, texts):
    """A forgotten OUT must not cost the last text."""
    folder = os.path.dirname(path) or '.'
    remedy = 'the last argument is the token file to write, so name a new file'
    if path == _texts.STANDARD_INPUT:
        raise Failure(f'the token file cannot be standard output; {remedy}', _command.BAD_ARGUMENT)
    if not os.path.isdir(folder):
        raise Failure(f'{folder}: no such folder; make it first, as with mkdir -p {folder}')
    if not os.path.exists(path):
        return
    if any(os.path.exists(text) and os.path.samefile(text, path) for text in texts):
        raise Failure(f'{path}: it is one of the texts; {remedy}')
    if not os.path.isfile(path):
        raise Failure(f'{path}: it is not an ordinary file; {remedy}')
    with open(path, 'rb') as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise Failure(f'{path}: it exists and is not a token file; {remedy}, or remove this one')


class TokenWriter:
    """Writes PATH.part, which gets its name once it is whole."""

    def __init__(self, path, vocabulary):
        self.path = path
        self.vocabulary = vocabulary
        self.type, self.code = ('uint16', 'H') if vocabulary <= 1 << 16 else ('uint32', 'I')
        self.tokens = 0
        self.part = path + '.part'
        try:
            self.file = open(self.part, 'xb')
        except FileExistsError as failure:
            raise Failure(f'{self.part}: it exists; another run may write it. If none does, remove it') from failure
        self.file.write(bytes(HEADER_BYTES))

    def write(self, ids):
        self.file.write(struct.pack(f'<{len(ids)}{self.code}', *ids))
        self.tokens += len(ids)

    def finish(self):
        self.file.seek(0)
        self.file.write(struct.pack(HEADER, MAGIC, 1, HEADER_BYTES, self.type.encode(), self.vocabulary,
                                    self.tokens))
        self.file.close()
        os.replace(self.part, self.path)

    def drop(self):
        try:
            self.file.close()
        finally:  # closing writes what is buffered, and the disk may be full
            if os.path.exists(self.part):
                os.remove(self.part)
