"""Reading the memory of a parameter outside of gathered(): an error that names the parameter.

LibTorch rejects pointers for writing, and says "Cannot access data pointer". It cannot reject those for reading
(client/tensors/chunk_storage.h), so tolist(), and with it repr(), would show what the block holds now. A subclass of
Parameter would see less: parameter.detach() is a plain tensor.
"""

import functools

import torch

from elixir import _held
from elixir._load import Error, native

# Methods that read memory, and how a message calls them.
OF_TENSORS = {'__array__': 'numpy()', '__dlpack__': 'DLPack', '__reduce_ex__': 'pickling', 'data_ptr': 'data_ptr()',
              'numpy': 'numpy()'}
OF_STORAGES = ('__getitem__', '_share_fd_cpu_', '_share_filename_cpu_', '_write_file', 'clone', 'copy_', 'cpu', 'cuda',
               'data_ptr', 'share_memory_', 'tolist')


def error_of(call, storage, first=None):
    """`first`: the element at which the call would begin; None: it would read the whole storage."""
    name = _held.name_in(storage, first) or '?'
    which = f"parameter '{name}'" if first is not None else f"the chunk that parameter '{name}' lies in"
    return Error(f'{call} of {which}: Elixir holds its memory. Read it inside `with elixir.gathered(parameter):`, or '
                 'take a copy: parameter.detach().clone(), model.state_dict()')


def checked_of_tensor(call, reads):
    @functools.wraps(reads)
    def checked(self, *args, **kwargs):
        if not native.readable(self):
            raise error_of(call, self.untyped_storage(), self.storage_offset())
        return reads(self, *args, **kwargs)
    return checked


def copied(reads):
    """Of a method that returns values and no memory: it reads a copy."""
    @functools.wraps(reads)
    def read(self):
        return reads(self if native.readable(self) else self.detach().clone())
    return read


def checked_of_storage(call, reads):
    """Of its arguments, too: those of copy_() are storages."""
    @functools.wraps(reads)
    def checked(self, *args, **kwargs):
        for storage in (self, *args):
            if isinstance(storage, torch.UntypedStorage) and not native.readable_storage(storage):
                raise error_of(f'untyped_storage().{call}()', storage)
        return reads(self, *args, **kwargs)
    return checked


def patch_torch():
    for name, call in OF_TENSORS.items():
        setattr(torch.Tensor, name, checked_of_tensor(call, getattr(torch.Tensor, name)))
    torch.Tensor.tolist = copied(torch.Tensor.tolist)
    for name in OF_STORAGES:
        setattr(torch.UntypedStorage, name, checked_of_storage(name, getattr(torch.UntypedStorage, name)))
    torch.utils.dlpack.to_dlpack = checked_of_tensor('DLPack', torch.utils.dlpack.to_dlpack)


patch_torch()
