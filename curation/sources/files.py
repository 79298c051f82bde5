"""Finds, describes and numbers the files of a source, and refuses files that changed."""

import difflib
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from curation.activity import doing
from curation.config import SourceConfig
from curation.errors import SourceError
from curation.escaping import quoted
from curation.registry import READERS, installed
from curation.sources import readers
from curation.sources.folders import METADATA, check_one_kind, folder_columns
from curation.sources.paths import FoundFile, content_digest, find, is_of_store
from curation.sources.source_file import TEXTS, Dialect, SourceFile


def discover(source: SourceConfig, known: Sequence[SourceFile] = ()) -> list[SourceFile]:
    """The files of a source in the order of their numbers.

    Folders and globs match files with an ending of the format (``auto``: of any known one), of one split and format
    (``curation.sources.folders``). Files among ``known`` keep
    their numbers; new files get the next numbers, in sorted order. Row counts of Parquet and Lance come from their
    metadata; JSONL and CSV are read through. A known file of the same size and time (or tag) is not looked into again.

    Raises:
        SourceError: nothing exists at the path, the format is unknown, files are of several splits or formats, one
            cannot be read, or there are no rows.
    """
    at_path, single = find(source.path)
    if not at_path:
        raise SourceError(f"{source.path}: the folder holds no files; put some there, or correct the path")
    found = _with_format(source, at_path, single)
    check_one_kind(source, found)
    before = {file.path: file for file in known}
    numbers = {file.path: file.index for file in known}
    following = max(numbers.values(), default=-1) + 1
    for file, _ in found:
        if file.path not in numbers:
            numbers[file.path] = following
            following += 1
    dialect = Dialect(source.delimiter, source.quoting, source.form)
    described = (
        old
        if _is_same(old := before.get(file.path), file, form, dialect)
        else _describe(file, form, numbers[file.path], dialect)
        for file, form in found
    )
    with doing(f"reading {len(found)} {'file' if len(found) == 1 else 'files'} of {source.path}"):
        files = sorted((file for file in described if file is not None), key=lambda file: file.index)
    if not sum(file.num_rows for file in files):
        left_out = "".join(f" ({words})" for words in left_out_words(files))
        raise SourceError(f"{source.path}: holds no rows{left_out}; give a source that does")
    return files


def left_out_words(files: Iterable[SourceFile]) -> list[str]:
    """Return in words how many records of the files are no rows, by the reason; nothing where all are."""
    counts = Counter[str]()
    for file in files:
        counts.update(file.left_out)
    if not counts:
        return []
    reasons = ", ".join(f"{reason} {number:,}" for reason, number in counts.most_common())
    return [f"{counts.total():,} records left out: {reasons}"]


def check_unchanged(before: Sequence[SourceFile], now: Sequence[SourceFile]) -> None:
    """Refuse files of the run that changed or vanished; accept new files.

    Raises:
        SourceError: a file changed or vanished; the message names it and what changed.
    """
    current = {file.path: file for file in now}
    for old in before:
        new = current.get(old.path)
        if new is None:
            raise SourceError(f"{old.path}: was read when this run began and is gone; restore it, or start another run")
        names = ("num_rows", "size", "modified", "schema", "format", *Dialect._fields)
        changes = [
            f"{name} was {getattr(old, name)}, is {getattr(new, name)}"
            for name in names
            if getattr(old, name) != getattr(new, name)
        ]
        if changes:
            mend = f"restore it{_with_its_time(old, new)}"
            raise SourceError(
                f"{old.path}: changed since this run began ({'; '.join(changes)}); {mend}, or start another run"
            )


def require_columns(files: Iterable[SourceFile], forms: Sequence[Sequence[str]]) -> None:
    """Check that every file has all columns of one of the ``forms``.

    Raises:
        SourceError: a file lacks columns; the message names it, the missing columns of the nearest form, and the
            columns that the file has.
    """
    for file in files:
        lacks = min(([column for column in form if column not in file.schema] for form in forms), key=len)
        if lacks:
            has = ", ".join(file.schema) or "none"
            others = f"; forms that are read: {' or '.join(map(', '.join, forms))}" if len(forms) > 1 else ""
            close = nearest(lacks[0], file.schema)
            hint = f"; did you mean {quoted(close)}? Rename it" if close else "; rename or add it"
            raise SourceError(f"{file.path}: has no column {lacks[0]!r} (it has: {has}{others}){hint}")


def nearest(name: str, columns: Iterable[str]) -> str | None:
    """The column whose name is most like another one, whatever its case; ``None`` where none is like it."""
    by_lower = {column.strip().lower(): column for column in columns}
    close = difflib.get_close_matches(name.strip().lower(), by_lower, n=1)
    return by_lower[close[0]] if close else None


def installed_readers() -> list[str]:
    """The names of readers in installed packages."""
    return [name for group in READERS.groups for name in installed(group)]


def _with_format(source: SourceConfig, found: list[FoundFile], single: bool) -> list[tuple[FoundFile, str]]:
    forms = {end: name for name in (*READERS, *installed_readers()) for end in READERS[name].endings}

    def ending(file: FoundFile) -> str | None:
        name = file.path.partition("?")[0] if "://" in file.path else file.path
        if not single and name.rpartition("/")[2] in METADATA:
            return None
        return next((form for end, form in forms.items() if name.rstrip("/").lower().endswith(end)), None)

    endings = [(file, ending(file)) for file in found]
    if source.format != "auto":
        files = [file for file, form in endings if form == source.format] or found
        return [(file, source.format) for file in files]
    known = [(file, form) for file, form in endings if form is not None]
    if not known:
        what = "its ending is" if single else f"its {len(found)} files have endings that are"
        raise SourceError(
            f"{source.path}: unknown format: {what} none of {', '.join(forms)}; "
            f"set format: {', '.join(dict.fromkeys(forms.values()))}"
        )
    return known


def _with_its_time(old: SourceFile, new: SourceFile) -> str:
    """Words on a local file of the same bytes whose time alone is another, as a copy or a checkout makes it."""
    is_touched = new.content and replace(new, modified=old.modified) == old and "://" not in old.path
    if not is_touched:
        return ""
    seconds, nanoseconds = divmod(int(old.modified), 10**9)
    command = f"touch -d @{seconds}.{nanoseconds:09} {shlex.quote(old.path)}"
    return f": its bytes are those of then, so give it its time back ({command})"


def _is_same(old: SourceFile | None, file: FoundFile, form: str, dialect: Dialect) -> bool:
    """Whether a file is as it was; of a Lance table only its version tells."""
    if old is None or form == "lance" or (form in TEXTS and old.dialect.asked(form) != dialect.asked(form)):
        return False
    return (old.format, old.size, old.modified) == (form, file.size, file.modified)


def _describe(file: FoundFile, form: str, index: int, dialect: Dialect) -> SourceFile:
    own = READERS[form].made_by is not None
    try:
        content = "" if own or form == "lance" else content_digest(file.path, file.size)
    except Exception as error:
        if not is_of_store(error, file.path):
            raise
        content = ""  # the reader tells of it
    shape = readers.measure(file.path, form, dialect)
    # of two values the file's own counts, as before it stood in such a folder
    folders = {key: text for key, text in folder_columns(file.inner).items() if key not in shape.schema}
    return SourceFile(
        path=file.path,
        format=form,
        index=index,
        num_rows=shape.num_rows,
        size=0 if form == "lance" else file.size,
        modified=shape.version or file.modified,
        schema=shape.schema | dict.fromkeys(folders, "string"),
        marks=shape.marks,
        **(shape.dialect._asdict() if form in TEXTS else {}),
        left_out=shape.left_out,
        folders=folders,
        content=content,
    )
