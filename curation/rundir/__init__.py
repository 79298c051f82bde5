"""The run directory: the graph of a run's stages, the finished stages, and the event log."""
