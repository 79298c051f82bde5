"""Passes of a model over a table: chunks of rows in, written fragments out, every row exactly once.

``run`` is the driver's side of one pass; ``dataset`` holds the actors, which may outlive a pass and serve several at
once; ``work_queue`` says who works on which chunk; ``actor`` is the process that they are, with ``models`` in it;
``poison`` finds rows that kill a process; ``monitor`` reports progress.
"""
