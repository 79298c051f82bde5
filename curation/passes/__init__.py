"""Passes of a model over a table: chunks of rows in, written fragments out, every row exactly once.

``run`` is the driver's side of one pass; ``dataset`` holds the actors, which may outlive a pass and serve several at
once; ``work_queue`` assigns chunks to actors; ``actor`` is an actor's process, which holds a model by ``models``;
``poison`` finds rows that kill a process; ``monitor`` reports progress.
"""
