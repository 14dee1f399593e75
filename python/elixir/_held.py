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
