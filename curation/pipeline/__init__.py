"""The parts of a run: functions that build the graph of its stages. Only this package calls a stage's work."""
