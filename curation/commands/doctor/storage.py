"""Checks of a run directory's storage: whether it supports the manifest, the lease and the tables."""

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from curation.commands.doctor.finding import Finding, fail, ok
from curation.commands.doctor.machine import find_existing
from curation.storage.conditional import make_register
from curation.storage.paths import Place, Remote, remove, require_reachable, write_atomically

FIX = "put the run directory on a writable disk (run_dir)"
LEASE_FIX = "use a file system whose link(2) never replaces a file, or a store that supports If-Match"
NEWEST = "use a store, or a setting of it, whose reads and listings show each write at once (run_dir)"


def check_writing(directory: Place) -> Finding:
    """Check writing, reading back, atomic replacement and the lease, in a temporary folder."""
    start = time.monotonic()
    require_reachable(directory)
    fix = NEWEST if isinstance(directory, Remote) else FIX
    try:
        with scratch(directory) as folder:
            path = folder / "manifest.json"
            for text in ("first" * 1000, "second" * 1000):
                write_atomically(path, text)
                if path.read_text() != text:
                    return fail(f"{directory}: a file reads back differently from what was written", fix)
            names = [item.name for item in folder.iterdir()]
            if "manifest.json" not in names:
                return fail(f"{directory}: a listing lacks a file that was just written", fix)
            if names != ["manifest.json"]:
                return fail(f"{directory}: a replaced file leaves another one behind", fix)
            if not _is_lease_exclusive(folder / "lease"):
                return fail(f"{directory}: two drivers can get the lease", LEASE_FIX)
    except OSError as error:
        return fail(f"{directory}: {error.strerror or error}", FIX)
    seconds = time.monotonic() - start
    return ok(f"{directory}: writes, reads back, replaces atomically and leases, in {seconds:.2f} s")


def check_tables(directory: Place) -> Finding:
    """Check that a Lance table keeps both of two commits on one version."""
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
        return fail(f"{directory}: Lance cannot write there: {error}", FIX)
    if read != [1, 2]:
        return fail(f"{directory}: two commits on one version should leave 2 rows, and left {len(read)}", FIX)
    return ok(f"{directory}: Lance keeps both of two commits on one version, {time.monotonic() - start:.2f} s")


@contextmanager
def scratch(directory: Place) -> Iterator[Place]:
    """Yield a temporary folder in a directory, or in the nearest existing one above it; remove it at the end."""
    inside = directory if isinstance(directory, Remote) else find_existing(directory)
    folder = inside / f".doctor-{uuid.uuid4().hex}"
    folder.mkdir()
    try:
        yield folder
    finally:
        remove(folder)


def _is_lease_exclusive(directory: Place) -> bool:
    """Return whether the lease refuses the second of two drivers, both for a new lease and for an existing one."""
    first, second = make_register(directory), make_register(directory)
    token = first.put_if_absent("first")
    if token is None or second.put_if_absent("second") is not None:
        return False
    return second.put_if_match("third", token) is not None and first.put_if_match("fourth", token) is None
