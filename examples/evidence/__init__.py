"""The experiment of docs/evidence.md, one command: ``python -m examples.evidence``."""
