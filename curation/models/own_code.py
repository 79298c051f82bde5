"""Detection of Python code that a model brings (``auto_map`` in its files), or compiled code that it names.

Such code runs only if the model's section of the configuration has ``allow_remote_code: true``, with a ``revision``
that pins the code (``ModelRef.code``). Nothing here runs it.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from curation.errors import ModelError
from curation.heavy import transformers
from curation.json_types import Json
from curation.refs import ModelRef
from curation.storage.paths import Place, Remote, to_place, walk

CODE_FILES = ("config.json", "tokenizer_config.json")
"""Files of a model that may name its own Python code under ``auto_map``."""
KERNELS = ("attn_implementation", "_attn_implementation")
"""Keys of ``config.json`` that may name a kernel of the hub, which is compiled code."""
MEND = "give a model of one of transformers' own architectures (docs/operations.md, Models of others)"
_COMMIT = re.compile(r"[0-9a-f]{40}")


def check_code(ref: ModelRef) -> None:
    """Raise ``ModelError`` if a model needs code of its own other than that of ``ref.code``; nothing is loaded.

    For a hub id without ``ref.code`` the check is left to the loader.
    """
    path = to_place(ref.base)
    if ref.code is None:
        if path.exists() and _needs_code(path):
            raise make_code_error(ref.base, find_named_code(ref))
        return
    if elsewhere := [name for names in find_named_code(ref).values() for name in names if "--" in name]:
        raise ModelError(
            f"model {ref.base!r}: takes code from another repository ({elsewhere[0]}), which its revision does not "
            "pin; copy that code into the model's directory"
        )
    if path.exists() and (found := compute_code_digest(path)) != ref.code:
        raise ModelError(
            f"model {ref.base!r}: its code changed: its digest is {found}, and {ref.code} was allowed; read it again, "
            f"then set revision: {found}"
        )


def find_allowed_code(base: str, revision: str | None) -> str:
    """Return ``ModelRef.code`` of a model with ``allow_remote_code: true``.

    Raises:
        ModelError: ``revision`` is not the commit of a hub id, or not the digest of the code in a directory.
    """
    path = to_place(base)
    if not path.exists():
        if revision is None or not is_commit(revision):
            raise ModelError(
                f"model {base!r}: allow_remote_code: true needs the commit of the code that you have read, 40 "
                f"hexadecimal digits, as revision; found {revision!r}"
            )
        return revision
    if revision != (found := compute_code_digest(path)):
        raise ModelError(
            f"model {base!r}: allow_remote_code: true needs the digest of the code that you have read as revision; "
            f"found {revision!r}, and the digest of {', '.join(name for name, _ in _iter_code_files(path))} is {found}"
        )
    return found


def compute_code_digest(path: Place) -> str:
    """Return the SHA-256 of the Python files in a model's directory, and of the files that name its classes."""
    digests = [(name, hashlib.sha256(file.read_bytes()).hexdigest()) for name, file in _iter_code_files(path)]
    return hashlib.sha256(json.dumps(digests).encode()).hexdigest()


def is_commit(revision: str | None) -> bool:
    """Return whether a revision is a full commit hash, not a branch or a tag."""
    return revision is not None and _COMMIT.fullmatch(revision) is not None


def get_hub_revision(ref: ModelRef) -> str | None:
    """Return the commit of a hub id to load, or None for a local directory, whose revision is a digest."""
    return None if Path(ref.base).exists() else ref.revision


def find_named_code(ref: ModelRef) -> dict[str, list[str]]:
    """Return the classes that a model's files name under ``auto_map``, by file; empty if there are none."""
    named = {}
    for name in CODE_FILES:
        if entry := (read_model_file(ref, name) or {}).get("auto_map"):
            values = entry.values() if isinstance(entry, dict) else [entry]
            # A tokenizer's value is a list of a slow and a fast class, either of which may be null.
            listed = [value if isinstance(value, list) else [value] for value in values]
            named[name] = [str(item) for items in listed for item in items if item is not None]
    return named


def check_head(ref: ModelRef) -> Json:
    """Return the classes of a reward model's own code, if it has any, by the class of transformers that each replaces.

    Raise ``ModelError`` if that code is not allowed, even if transformers has a class for the model, which it would
    silently use, and with it another head.
    """
    classes = (read_model_file(ref, "config.json") or {}).get("auto_map")
    classes = classes if isinstance(classes, dict) else {}
    if classes and ref.code is None:
        raise ModelError(
            f"reward model {ref.base!r} brings its own code ({', '.join(map(str, classes.values()))}), which does not "
            f"run here; {MEND}"
        )
    return classes


def _needs_code(path: Place) -> bool:
    """Return whether a directory's model or tokenizer needs code that transformers does not contain."""
    named = find_named_code(ModelRef(base=str(path)))
    settings = read_object(path / "config.json") or {}
    if any("/" in str(settings.get(key) or "") for key in KERNELS):
        return True  # a kernel of the hub: compiled code
    if not named:
        return False
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES, tokenizer_class_from_name

    family = settings.get("model_type")
    if "config.json" in named and family not in transformers.CONFIG_MAPPING:
        return True
    if "tokenizer_config.json" not in named or family in TOKENIZER_MAPPING_NAMES:
        return False
    name = (read_object(path / "tokenizer_config.json") or {}).get("tokenizer_class")
    return not isinstance(name, str) or tokenizer_class_from_name(name) is None


def _iter_code_files(path: Place) -> Iterator[tuple[str, Place]]:
    """Yield name and path of the files in a model's directory that determine which code runs, sorted by name."""
    if isinstance(path, Remote):
        names = [entry.path for entry in path.entries()]
    else:
        names = [str((Path(folder) / name).relative_to(path)) for folder, _, files in walk(path) for name in files]
    yield from ((name, path / name) for name in sorted(names) if name.endswith(".py") or name in CODE_FILES)


def read_model_file(ref: ModelRef, name: str) -> Json | None:
    """Return the JSON object in a file of a model, or None if there is none (the loader reports that error)."""
    path = to_place(ref.base)
    if path.exists():
        return read_object(path / name)
    found = find_model_file(ref, name)
    return None if found is None else read_object(found)


def find_model_file(ref: ModelRef, name: str) -> Path | None:
    """Return the path of a model's file on this machine, or None; files of a hub id are in the local cache."""
    path = to_place(ref.base)
    if isinstance(path, Remote):
        return None
    if path.exists():
        return path / name if (path / name).is_file() else None
    try:
        found = transformers.utils.hub.cached_file(
            ref.base, name, revision=ref.revision, _raise_exceptions_for_missing_entries=False
        )
    except (OSError, ValueError):
        return None
    return None if found is None else Path(found)


def read_object(path: Place) -> Json | None:
    """Return the JSON object in a file; None if there is none."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def make_code_error(base: str, named: Mapping[str, list[str]]) -> ModelError:
    """Return the error for a model that needs its own code."""
    where = "; ".join(f"auto_map of {name} names {', '.join(classes)}" for name, classes in named.items())
    where = where or "config.json names a kernel of the hub"
    return ModelError(f"model {base!r} brings its own code ({where}), which does not run here; {MEND}")
