"""Lines on the terminal."""

import sys
import time


def say(text: str) -> None:
    """A line with the time."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)
