"""Files on a disk or in an object store: paths, conditional writes, the lease of a run, local copies."""
