"""Python runs this at the start of every process of the tests, since ``conftest.py`` puts this folder on its path.

An import of torch and transformers makes a million objects, through which Python's default looks for garbage again and
again: a fifth of the CPU time of such an import (``docs/log.md``, "What the tests cost").
"""

import gc

gc.set_threshold(200_000, 20, 100)
