"""Pools that look healthy by their numbers and are wrong, each beside an honest one: a part of ``benchmarks.verdicts``.

Each kind changes the material of a healthy run (``benchmarks.verdicts.material``) without an audit: what is wrong shows
in labels and texts alone.

- ``unseen class``: 30 % of the pool's labels are of a class that no labelled row has; the honest pool has 20 classes of
  the source's shares, the rarest .1 %, so that some are missing by chance.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from curation.domains.unseen_labels import SeenLabels, UnseenLabels
from curation.report.evidence import Material

NUM_CLASSES, RAREST = 20, 0.001


def unseen_class(of: Material, rng: np.random.Generator, *, wrong: bool) -> Material:
    """The pool's labels: with ``wrong`` 30 % of a class that the source lacks."""
    share_C = np.geomspace(RAREST, 1, NUM_CLASSES)
    share_C /= share_C.sum()
    counts = Counter({f"class {c}": int(n) for c, n in enumerate(rng.multinomial(len(of.source), share_C)) if n})
    seen = SeenLabels.of(counts)
    assert seen is not None, "rows of few classes"
    pool = Counter({f"class {c}": int(n) for c, n in enumerate(rng.multinomial(of.num_pool, share_C)) if n})
    if wrong:
        moved = rng.binomial(of.num_pool, 0.3)
        pool = Counter({label: round(n * (1 - moved / of.num_pool)) for label, n in pool.items()}) + Counter(new=moved)
    unseen = Counter({label: n for label, n in pool.items() if label not in seen.labels})
    return replace(of, unseen=UnseenLabels.of(seen, pool.total(), unseen) if unseen else None)


POOLS: Mapping[str, tuple[Callable[..., Material], str]] = {"unseen class": (unseen_class, "unseen")}
"""How the material of a healthy run is changed, and the rule that has to find a wrong pool."""
