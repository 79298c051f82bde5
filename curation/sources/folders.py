"""Reads what the path of a file below its source's folder says: its split, its format, and columns (``label=pos/``).

A folder is often a clone of a data set's repository: test rows, a sample and the same rows in two formats stand beside
those that are meant, and read together they are labelled rows without a word.
"""

import posixpath
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath
from urllib.parse import unquote

from curation.config import SourceConfig
from curation.errors import SourceError
from curation.registry import COMPRESSED
from curation.sources.paths import FoundFile

SPLITS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev", "devel", "development"),
    "test": ("test", "testing", "eval", "evaluation", "heldout", "holdout"),
    "sample": ("sample", "samples", "preview", "toy"),
    "labelled": ("labelled", "labeled"),
    "unlabelled": ("unlabelled", "unlabeled", "unsupervised"),
}
"""Words by which the name of a file or folder says a split, digits after them aside (``train2``)."""
METADATA = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json", "config.json")
"""Files of a data set's repository that hold no rows."""
_SPLIT_OF = {word: split for split, words in SPLITS.items() for word in words}
_KEY = re.compile(r"([^=]+)=(.*)")
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
MOST_NAMED = 3
"""Files of a kind that a message names."""


def folder_columns(inner: str) -> dict[str, str]:
    """Return the columns that the folders of a path give, as Hive, Spark and pandas write them: ``label=pos/x.csv``."""
    found = (_KEY.fullmatch(part) for part in PurePosixPath(inner).parts[:-1])
    return {key: "" if value == _NO_VALUE else unquote(value) for key, value in (hit.groups() for hit in found if hit)}


def check_one_kind(source: SourceConfig, files: Sequence[tuple[FoundFile, str]]) -> None:
    """Refuse files of a folder or glob that are of several splits or formats, unless the source says ``mixed``.

    Args:
        source: where they were found.
        files: each with its format.

    Raises:
        SourceError: names the kinds with their files.
    """
    kinds: dict[str, list[str]] = defaultdict(list)
    names = {file.inner for file, _ in files}
    for file, form in files:
        plain, ending = posixpath.splitext(file.inner)
        copied = ending if ending in COMPRESSED and plain in names else ""  # the same file once more, compressed
        kinds[f"{_split(file.inner) or 'no split named'}, {form}{copied}"].append(file.inner)
    if source.mixed or len(kinds) < 2:
        return
    listed = "; ".join(f"{kind}: {_named(inner)}" for kind, inner in kinds.items())
    raise SourceError(
        f"{source.path}: {len(files)} files of {len(kinds)} kinds would be read as one source ({listed}); name one "
        "kind in path (a file, or a glob such as data/train-*.parquet), or set mixed: true in the source if all are "
        "meant"
    )


def _split(inner: str) -> str:
    """Return the split that a path names, in its file before its folders, or the arm that a run selected; else ""."""
    *folders, file = PurePosixPath(inner).parts or ("",)
    if folders and folders[-1].startswith(("select-", "keep-")):  # a run's own, with a file for each arm
        return f"arm {PurePosixPath(file).stem}"
    keys = [hit[2] for part in folders if (hit := _KEY.fullmatch(part)) and hit[1].casefold() in ("split", "fold")]
    names = [file.partition(".")[0], *reversed([part for part in folders if "=" not in part]), *keys]
    return next((split for name in names if (split := _word(name))), "")


def _word(name: str) -> str:
    """Return the split that the words of a name say: the first that does."""
    parts = re.split(r"[\W_]+|(?<=[a-z])(?=[A-Z])", name)
    words = (part.casefold().rstrip("0123456789") for part in parts)
    return next((_SPLIT_OF[word] for word in words if word in _SPLIT_OF), "")


def _named(inner: Iterable[str]) -> str:
    names = sorted(inner)
    return ", ".join(names[:MOST_NAMED]) + (f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else "")
