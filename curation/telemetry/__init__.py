"""Telemetry of a run: progress of stages, progress lines on the terminal, and Ray metrics."""
