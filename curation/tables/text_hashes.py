"""63-bit hashes of texts, to count or compare many labels without holding them.

Among 10^7 different texts, two have the same hash with a probability of 10^-5.
"""

import hashlib

import numpy as np
import pyarrow as pa

from curation.arrays import Uint64s

BITS = 63
NO_TEXT = np.uint64(1 << BITS)
"""Value that stands for a null and is no text's hash."""


def hash_texts(text_N: pa.Array) -> Uint64s:
    """Return a hash of each text, ``NO_TEXT`` for a null, uint64 [N]; hash each distinct text of the array once."""
    coded = text_N.dictionary_encode()
    texts: list[str] = coded.dictionary.to_pylist()
    digests = (hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts)
    hash_G = np.fromiter((int.from_bytes(digest) >> 1 for digest in digests), np.uint64, len(texts))
    place_N = coded.indices.fill_null(len(texts)).to_numpy(zero_copy_only=False)
    found: Uint64s = np.append(hash_G, NO_TEXT)[place_N]
    return found
