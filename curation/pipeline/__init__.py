"""The parts of a run: functions that build the graph of its stages; each stage's work is called from here alone."""
