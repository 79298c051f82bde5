"""Discovery and description of a source's files, and refusal of files that changed."""

import difflib
import posixpath
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from curation.activity import doing
from curation.config import SourceConfig
from curation.errors import SourceError
from curation.escaping import quote_text
from curation.sources import readers
from curation.sources.paths import FoundFile, compute_content_digest, find, naming_errors
from curation.sources.source_file import COMPRESSED, DIALECT, FORMATS, SourceFile

SPLITS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev", "devel", "development"),
    "test": ("test", "testing", "eval", "evaluation", "heldout", "holdout"),
    "sample": ("sample", "samples", "example", "examples", "preview", "toy", "tiny", "mini", "demo", "debug"),
    "labelled": ("labelled", "labeled"),
    "unlabelled": ("unlabelled", "unlabeled", "unsupervised"),
}
"""Words in the name of a file or folder that name a split, ignoring any suffix (``train2``, ``testset``)."""
_AFTER = re.compile(r"\d+$|(?<=.)(?:set|data|split|file)s?\d*$")
METADATA = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json", "config.json")
"""Names of files in a data set's repository that hold no rows."""
UNREAD = (".tsv", ".tsv.gz", ".xlsx", ".xls", ".arrow", ".feather", ".avro", ".orc", ".xz", ".lz4")
"""Endings of files that hold rows but have no reader."""
_SPLIT_OF = {word: split for split, words in SPLITS.items() for word in words}
MOST_NAMED = 3
"""Maximum number of files of a kind that a message names."""


def discover(source: SourceConfig, known: Sequence[SourceFile] = ()) -> list[SourceFile]:
    """Return the files of a source in the order of their numbers.

    Folders and globs match files with an ending of the format (``auto``: of any known one), of one split and format.
    Files among ``known`` keep their numbers; new files get the next numbers, in sorted order. Row counts of Parquet and
    Lance come from their metadata; JSONL and CSV are read through. A known file of the same size and time (or tag) is
    not looked into again.

    Raises:
        SourceError: nothing exists at the path, the format is unknown, files are of several splits or formats, one
            cannot be read, or there are no rows.
    """
    at_path, single = find(source.path)
    if not at_path:
        raise SourceError(f"{source.path}: the folder holds no files; put some there, or correct the path")
    found = _with_format(source, at_path, single)
    _require_one_kind(source, found)
    forms = {form for _, form in found}
    for key in DIALECT:
        value = getattr(source, key)
        if value != SourceConfig.model_fields[key].default and "csv" not in forms:
            raise SourceError(
                f"{source.path}: {key}: {value!r} is read of csv alone, and the source is "
                f"{', '.join(sorted(forms))}; take the key out, or convert the files"
            )
    before = {file.path: file for file in known}
    following = max((file.index for file in known), default=-1) + 1
    files = []
    with doing(f"reading {len(found)} {'file' if len(found) == 1 else 'files'} of {source.path}"):
        for file, form in found:
            old = before.get(file.path)
            asked = DIALECT if form == "csv" else ()
            if (
                old is not None
                and form != "lance"  # a table is identified by its version
                and (old.format, old.size, old.modified) == (form, file.size, file.modified)
                and all(getattr(old, name) == getattr(source, name) for name in asked)
            ):
                files.append(old)
            else:
                files.append(_describe(file, form, following if old is None else old.index, source))
                following += old is None
    files.sort(key=lambda file: file.index)
    if not sum(file.num_rows for file in files):
        raise SourceError(f"{source.path}: holds no rows; give a source that does")
    return files


def check_unchanged(before: Sequence[SourceFile], now: Sequence[SourceFile]) -> None:
    """Raise ``SourceError`` for a file of the run that changed or vanished, saying what changed; accept new files."""
    current = {file.path: file for file in now}
    for old in before:
        new = current.get(old.path)
        if new is None:
            raise SourceError(f"{old.path}: was read when this run began and is gone; restore it, or start another run")
        changes = [
            f"{name} was {was}, is {now_is}"
            for name in ("num_rows", "size", "modified", "schema", "format", *DIALECT)
            if (was := getattr(old, name)) != (now_is := getattr(new, name))
        ]
        if changes:
            mend = "restore it"
            if new.content and replace(new, modified=old.modified) == old and "://" not in old.path:  # a copy, checkout
                seconds, nanoseconds = divmod(int(old.modified), 10**9)
                command = f"touch -d @{seconds}.{nanoseconds:09} {shlex.quote(old.path)}"
                mend += f": its bytes have not changed, so set its time back ({command})"
            raise SourceError(
                f"{old.path}: changed since this run began ({'; '.join(changes)}); {mend}, or start another run"
            )


def require_columns(files: Iterable[SourceFile], forms: Sequence[Sequence[str]]) -> None:
    """Raise ``SourceError`` for a file without all columns of one of the ``forms``, naming the fewest that it lacks."""
    for file in files:
        lacks = min(([column for column in form if column not in file.schema] for form in forms), key=len)
        if lacks:
            has = ", ".join(file.schema) or "none"
            others = f"; forms that are read: {' or '.join(map(', '.join, forms))}" if len(forms) > 1 else ""
            close = find_nearest_column(lacks[0], file.schema)
            hint = f"; did you mean {quote_text(close)}? Rename it" if close else "; rename or add it"
            raise SourceError(f"{file.path}: has no column {lacks[0]!r} (it has: {has}{others}){hint}")


def find_nearest_column(name: str, columns: Iterable[str]) -> str | None:
    """Return the column whose name is most similar to ``name``, ignoring case; ``None`` if none is similar."""
    by_lower = {column.strip().lower(): column for column in columns}
    close = difflib.get_close_matches(name.strip().lower(), by_lower, n=1)
    return by_lower[close[0]] if close else None


def _with_format(source: SourceConfig, found: list[FoundFile], single: bool) -> list[tuple[FoundFile, str]]:
    known, others = [], []
    for file in found:
        name = file.path.partition("?")[0] if "://" in file.path else file.path
        form = next((form for end, form in FORMATS.items() if name.rstrip("/").lower().endswith(end)), None)
        if form is None or (not single and name.rpartition("/")[2] in METADATA):
            others.append(file.inner)
        else:
            known.append((file, form))
    if source.format != "auto":
        files = [file for file, form in known if form == source.format] or found
        return [(file, source.format) for file in files]
    if not known:
        what = "its ending is" if single else f"its {len(found)} files have endings that are"
        raise SourceError(
            f"{source.path}: unknown format: {what} none of {', '.join(FORMATS)}; "
            f"set format: {', '.join(dict.fromkeys(FORMATS.values()))}"
        )
    if unread := [inner for inner in others if inner.lower().endswith(UNREAD)]:
        raise SourceError(
            f"{source.path}: {_format_names(unread)} would be left out: what ends in {', '.join(UNREAD)} is not read; "
            "convert it, or name the others in path (a glob such as *.csv)"
        )
    return known


def _describe(file: FoundFile, form: str, index: int, source: SourceConfig) -> SourceFile:
    found = readers.measure(
        SourceFile(
            path=file.path,
            format=form,
            index=index,
            num_rows=0,
            size=0 if form == "lance" else file.size,
            modified=file.modified,
            schema={},
            **({name: getattr(source, name) for name in DIALECT} if form == "csv" else {}),
        )
    )
    content = ""
    if form != "lance":
        with naming_errors(file.path, f"cannot be read as {form}: {{}}"):
            content = compute_content_digest(file.path, file.size)
    return replace(found, content=content)


def _require_one_kind(source: SourceConfig, files: Sequence[tuple[FoundFile, str]]) -> None:
    """Raise ``SourceError`` for ``files`` of several splits or formats, unless the source says ``mixed``.

    A folder is often a clone of a data set's repository, with test rows, a sample and the same rows in two formats
    beside the intended files. Read together, they would silently become labelled rows.
    """
    kinds: dict[str, list[str]] = defaultdict(list)
    split = [posixpath.splitext(file.inner) for file, _ in files]
    split = [(name, end) if end.lower() in COMPRESSED else (name + end, "") for name, end in split]
    plain = Counter(name for name, _ in split)
    for (file, form), (name, ending) in zip(files, split, strict=True):
        copied = ending if plain[name] > 1 else ""  # the same file once more, compressed
        kinds[f"{_find_split(file.inner) or 'no split named'}, {form}{copied}"].append(file.inner)
    if source.mixed or len(kinds) < 2:
        return
    listed = "; ".join(f"{kind}: {_format_names(inner)}" for kind, inner in kinds.items())
    raise SourceError(
        f"{source.path}: {len(files)} files of {len(kinds)} kinds would be read as one source ({listed}); name one "
        "kind in path (a file, or a glob such as data/train-*.parquet), or set mixed: true in the source if all are "
        "meant"
    )


def _find_split(inner: str) -> str:
    """Return the split that a path names, by the file's name before its folders', or ""."""
    *folders, file = PurePosixPath(inner).parts or ("",)
    names = [file.partition(".")[0], *reversed(folders)]
    parts = (part for name in names for part in re.split(r"[\W_]+|(?<=[a-z])(?=[A-Z])", name))
    words = (_AFTER.sub("", part.casefold()) for part in parts)
    return next((_SPLIT_OF[word] for word in words if word in _SPLIT_OF), "")


def _format_names(inner: Iterable[str]) -> str:
    names = sorted(inner)
    return ", ".join(names[:MOST_NAMED]) + (f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else "")
