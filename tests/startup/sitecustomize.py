"""Python runs this at the start of every process of the tests, since ``conftest.py`` puts this folder on its path.

An import of torch and transformers makes a million objects, through which Python's default looks for garbage again and
again: a fifth of the CPU time of such an import (``docs/log/experiments.md``, "What the tests cost"). A third of the rest
of an import of transformers' models is scikit-learn, for one function of assisted generation, which nothing here uses.
"""

import gc
import sys
from importlib.machinery import PathFinder

gc.set_threshold(200_000, 20, 100)


class WithoutScikitLearn:
    """Finds transformers' module of what is installed, so that it says no of scikit-learn; others import that."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "transformers.utils.import_utils":
            return None
        spec = PathFinder.find_spec(name, path, target)
        executed = spec.loader.exec_module

        def exec_module(module):
            executed(module)
            module.is_sklearn_available = lambda: False

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, WithoutScikitLearn)
