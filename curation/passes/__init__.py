"""Passes of a model over a table: chunks of rows in, written fragments out, every row exactly once.

``job`` describes a pass; ``run`` is the driver's side, which reports progress; ``dataset`` holds the actors, which may
outlive a pass and serve several at once; ``work_queue`` assigns chunks, which ``cutting`` cuts, to actors; ``actor`` is
an actor's process, which holds a model; ``poison`` finds rows that kill a process.
"""
