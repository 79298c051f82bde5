"""Passes of a model over a table: chunks of rows in, written fragments out, every row exactly once.

``run`` is the driver's side of one pass; ``pool`` holds the actors, which may outlive a pass and serve several at once;
``actor`` is the process that they are, with ``models`` in it; ``bisection`` and ``recovery`` deal with processes that
die; ``monitor`` reports progress.
"""
