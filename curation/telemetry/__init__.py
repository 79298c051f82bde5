"""Telemetry of a run: its standing, progress lines, Ray metrics."""
