"""The draw of docs/draw.py from code with known docstrings and messages."""

import runpy
from pathlib import Path

DRAW = runpy.run_path(str(Path(__file__).parents[1] / "docs" / "draw.py"))["draw"]
CODE = '''\
"""A module."""
LIMIT = 3
"""The most
of them."""


class Box:
    """A box."""

    size: int
    """Its size."""

    def lift(self):
        """Lift it."""
        raise ValueError(f"{self.size}: is too large; take a smaller one")

    def _hide(self):
        """Hide it."""
        raise NotImplementedError


class _Hidden:
    """Hidden."""

    def show(self):
        """Show it."""
'''


def test_public_docstrings_and_messages_are_drawn_with_their_places(tmp_path: Path):
    for folder, code in (("curation", CODE), ("train", "raise KeyError('gone')"), ("tune", "")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.py").write_text(code)
    drawn = DRAW(tmp_path, 1, 6)
    assert sorted(drawn[:4]) == [
        "curation/a.py:10 Box.size: Its size.",
        "curation/a.py:13 Box.lift: Lift it.",
        "curation/a.py:2 LIMIT: The most of them.",
        "curation/a.py:7 Box: A box.",
    ]
    assert sorted(drawn[4:]) == [
        "curation/a.py:15 ValueError(f'{self.size}: is too large; take a smaller one')",
        "train/a.py:1 KeyError('gone')",
    ]
    assert DRAW(tmp_path, 1, 3) == DRAW(tmp_path, 1, 3)
    assert len({tuple(DRAW(tmp_path, seed, 3)) for seed in range(9)}) > 1
