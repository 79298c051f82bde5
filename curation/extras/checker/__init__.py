"""Checks by a user's own command: the command and its limits (``command.py``), and what starts it (``launch.py``)."""
