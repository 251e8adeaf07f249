"""Takes the place of SGLang's compiled kernels on a machine that cannot run them.

SGLang imports names from `sgl_kernel` and its submodules even where it then uses plain torch code. Each name
resolves to an object that only complains when it is called, so a path that does need a kernel fails loudly.
"""

import importlib.machinery
import sys
import types

__version__ = "0.3.21"


class _Absent:
    """A kernel that is not there."""

    def __init__(self, path):
        self.__name__ = path

    def __getattr__(self, name):
        return _absent(self.__name__, name)

    def __call__(self, *args, **kwargs):
        raise NotImplementedError(f"{self.__name__} needs the compiled sgl_kernel")


def _absent(path, name):
    if name.startswith("__"):
        raise AttributeError(name)
    return _Absent(f"{path}.{name}")


class _Finder:
    """Answers the import of any submodule with an empty module of absent kernels."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if not name.startswith(__name__ + "."):
            return None
        return importlib.machinery.ModuleSpec(name, _Finder, is_package=True)

    @staticmethod
    def create_module(spec):
        module = types.ModuleType(spec.name)
        module.__getattr__ = lambda name: _absent(spec.name, name)
        return module

    @staticmethod
    def exec_module(module):
        pass


def __getattr__(name):
    return _absent(__name__, name)


sys.meta_path.append(_Finder)
