"""The run directory: the graph of stages that a run is, what of it is done, and what happened."""
