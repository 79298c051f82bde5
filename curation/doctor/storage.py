"""Checks of the file system of a run directory: what the manifest, the lock and the tables need of it."""

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from curation.doctor.finding import Verdict, fail, ok
from curation.doctor.machine import existing
from curation.places import Place, Remote, remove, require_reachable, write_atomically
from curation.registers import register_of

MEND = "give the run directory a disk that is writable (run_dir)"


def files(directory: Place) -> Verdict:
    """Write, read after write, atomic replacement and the lease, in a folder of its own that is removed."""
    start = time.monotonic()
    require_reachable(directory)
    try:
        with scratch(directory) as folder:
            path = folder / "manifest.json"
            for text in ("first" * 1000, "second" * 1000):
                write_atomically(path, text)
                if path.read_text() != text:
                    return fail(f"{directory}: what is read is not what was written", MEND)
            if [item.name for item in folder.iterdir()] != ["manifest.json"]:
                return fail(f"{directory}: a replaced file leaves another one behind", MEND)
            if not _leases(folder / "lease"):
                mend = "take a file system whose link(2) never replaces, or a store that knows If-Match"
                return fail(f"{directory}: a lease is given twice", mend)
    except OSError as error:
        return fail(f"{directory}: {error.strerror or error}", MEND)
    seconds = time.monotonic() - start
    return ok(f"{directory}: written, read after write, replaced at once and leased, in {seconds:.2f} s")


def tables(directory: Place) -> Verdict:
    """A Lance table: two commits on one version, both of which must be there afterwards."""
    import lance
    import pyarrow as pa
    from lance.fragment import write_fragments

    start = time.monotonic()
    try:
        with scratch(directory) as folder:
            uri = str(folder / "table.lance")
            rows = pa.table({"row_id": pa.array([1, 2], pa.int64())})
            version = lance.write_dataset(rows.slice(0, 0), uri, schema=rows.schema).version
            for place in range(2):
                written = write_fragments(rows.slice(place, 1), uri, schema=rows.schema, mode="append")
                lance.LanceDataset.commit(uri, lance.LanceOperation.Append(written), read_version=version)
            read = sorted(lance.dataset(uri).to_table()["row_id"].to_pylist())
    except (OSError, RuntimeError, ValueError) as error:
        return fail(f"{directory}: Lance cannot write there: {error}", MEND)
    if read != [1, 2]:
        return fail(f"{directory}: of two commits on one version {len(read)} rows are left", MEND)
    return ok(f"{directory}: Lance keeps both of two commits on one version, {time.monotonic() - start:.2f} s")


@contextmanager
def scratch(directory: Place) -> Iterator[Place]:
    """A folder in a directory, or in the nearest one above that is there, as long as the context lasts."""
    inside = directory if isinstance(directory, Remote) else existing(directory)
    folder = inside / f".doctor-{uuid.uuid4().hex}"
    folder.mkdir()
    try:
        yield folder
    finally:
        remove(folder)


def _leases(directory: Place) -> bool:
    """Whether of two drivers one is refused, to begin with and later on."""
    first, second = register_of(directory), register_of(directory)
    token = first.put_if_absent("first")
    if token is None or second.put_if_absent("second") is not None:
        return False
    return second.put_if_match("third", token) is not None and first.put_if_match("fourth", token) is None
