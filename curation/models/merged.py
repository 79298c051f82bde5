"""Models with adapters merged into the weights, once per node, for engines that read weights from files."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from curation.models import load_model, load_tokenizer
from curation.models.loading import make_saved_ref
from curation.refs import ModelRef, fingerprint
from curation.storage.cache import in_cache, remove_unused
from curation.storage.digest import compute_model_digest

PREFIX = "merged-"
KEPT = 3
"""Maximum number of merged models that a node keeps; those used longest ago are removed first."""


@contextmanager
def merged(model: ModelRef, *, dtype: str) -> Iterator[ModelRef]:
    """Yield the model with its adapter merged into weights of ``dtype``, in files that are kept within the context.

    The first process of the node merges; others wait for it and read the same files. Merging suits an engine with one
    adapter: a step costs no more than the base's, every kind of adapter of peft works, and the numbers are those of the
    transformers teacher, which merges too.

    Args:
        model: a model with an adapter, both on this node (``curation.models.fetch_model``) unless the base is a hub id.
        dtype: type of the merged weights.

    Raises:
        ModelError: the model does not load.
        OSError: there is no room for the weights.
    """

    def make(directory: Path) -> None:
        remove_unused(PREFIX, keep=KEPT - 1)
        load_model(model, dtype=dtype).save_pretrained(directory)
        load_tokenizer(model).save_pretrained(directory)

    contents = [compute_model_digest(path) for path in map(Path, (model.base, model.adapter or "")) if path.is_dir()]
    libraries = [version(name) for name in ("peft", "transformers")]
    key = fingerprint([model.base, model.revision, model.code, contents, dtype, libraries])
    with in_cache(PREFIX + key, make) as directory:
        yield make_saved_ref(model, directory)
