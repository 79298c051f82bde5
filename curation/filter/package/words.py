"""The hashed words of a package's labelled texts as arrays of ``shift.safetensors``."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix

from curation.metrics.text_shift import NUM_HASHES, Words

WORDS = ("word_starts", "word_hashes", "word_counts")
"""Where the hashes of each text begin, int32 [N + 1]; the hashes, uint16; and how often each occurs, int16."""
_DTYPES = (np.int32, np.uint16, np.int16)


def pack_words(words_NW: Words) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of hashed words, by ``WORDS``; none without texts."""
    if not words_NW.shape[0]:
        return {}
    parts = zip(WORDS, (words_NW.indptr, words_NW.indices, words_NW.data), _DTYPES, strict=True)
    return {name: part.astype(dtype) for name, part, dtype in parts}


def unpack_words(arrays: Mapping[str, npt.NDArray[Any]], num_texts: int) -> Words:
    """Return the hashed words that :func:`pack_words` made arrays of.

    Raises:
        KeyError: an array is missing.
        ValueError: the arrays do not fit each other, or hold those of another number of texts.
    """
    starts, hashes, counts = (arrays[name] for name in WORDS)
    dtypes = [part.dtype for part in (starts, hashes, counts)]
    if dtypes != list(map(np.dtype, _DTYPES)):
        raise ValueError(f"{', '.join(WORDS)} are of {', '.join(map(str, dtypes))}")
    words_NW = csr_matrix((counts, hashes.astype(np.int32), starts), shape=(num_texts, NUM_HASHES))
    words_NW.check_format(full_check=True)
    return words_NW
