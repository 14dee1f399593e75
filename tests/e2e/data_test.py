"""Text and tokens of the user's own."""

import os
import re
import struct

import harness
from harness import TINY, program


class Data(harness.ElixirTest):
    def path(self, name):
        return os.path.join(self.folder, name)

    def train(self, *flags):
        return self.succeed(self.launch(1, program('train_gpt2')), TINY, flags)

    def test_a_text_file_of_the_users(self):
        with open(self.path('song.txt'), 'w', encoding='utf-8') as file:
            file.write('Ein Männlein steht im Walde ganz still und stumm.\n' * 200)
        finished = self.train('--steps', '40', '--warmup-steps', '5', '--data',
                              self.path('song.txt'))
        first, last = map(float, re.search('first_loss (.*) last_loss (.*) steps 40',
                                           finished.lines[-1]).groups())
        # One line said again and again is learnt at once, which the default text is not.
        self.assertLess(last, first - 2)

    def test_several_files_are_one_text(self):
        text = ('the quick brown fox jumps over the lazy dog\n' * 100).encode()
        for name, part in (('whole', text), ('head', text[:1000]), ('tail', text[1000:])):
            with open(self.path(name), 'wb') as file:
                file.write(part)
        flags = ['--steps', '4', '--checksum', '--data']
        whole = self.train(flags, self.path('whole'))
        parts = self.train(flags, self.path('head'), self.path('tail'))
        swapped = self.train(flags, self.path('tail'), self.path('head'))
        self.assertEqual(whole.checksum, parts.checksum)
        self.assertNotEqual(whole.checksum, swapped.checksum)

    def test_a_token_file_means_the_bytes_of_a_text(self):
        text = ('tokens of two bytes each, little endian\n' * 100).encode()
        with open(self.path('text'), 'wb') as file:
            file.write(text)
        with open(self.path('text.bin'), 'wb') as file:
            file.write(struct.pack(f'<{len(text)}H', *text))
        flags = ['--steps', '4', '--checksum', '--data']
        self.assertEqual(self.train(flags, self.path('text')).checksum,
                         self.train(flags, self.path('text.bin')).checksum)


if __name__ == '__main__':
    harness.main()
