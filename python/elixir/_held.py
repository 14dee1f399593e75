"""Which parameters and modules an optimizer holds; both forget what the program forgets."""

import weakref

_parameters = {}                          # id(parameter) -> (weak reference to it, to its optimizer, its name)
_modules = weakref.WeakKeyDictionary()    # module -> weak reference to its optimizer


def hold(parameter, optimizer, name):
    key = id(parameter)
    _parameters[key] = (weakref.ref(parameter, lambda _: _parameters.pop(key, None)), weakref.ref(optimizer), name)


def hold_module(module, optimizer):
    _modules[module] = weakref.ref(optimizer)


def let_go(optimizer):
    for key in [key for key, (_, its, _) in _parameters.items() if its() is optimizer]:
        del _parameters[key]
    for module in [module for module, its in _modules.items() if its() is optimizer]:
        del _modules[module]


def of_parameter(parameter):
    """(optimizer, name) of a parameter that is held, else (None, None)."""
    found = _parameters.get(id(parameter))
    if found is None or found[0]() is not parameter:
        return None, None
    return found[1](), found[2]


def of_module(module):
    """The optimizer that holds a module's parameters, or None."""
    found = _modules.get(module)
    return None if found is None else found()


def name_in(storage, first=None):
    """The name of the parameter whose elements lie in a storage; with `first`, at that element."""
    for reference, _, name in list(_parameters.values()):
        parameter = reference()
        if parameter is None or parameter.untyped_storage()._cdata != storage._cdata:
            continue
        begin = parameter.storage_offset()
        if first is None or begin <= first < begin + max(parameter.numel(), 1):
            return name
    return None


def any_module_in(module):
    """Whether an optimizer holds the module or a part of it."""
    return any(of_module(part) is not None for part in module.modules())
