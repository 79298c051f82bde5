r"""Equivalence of two final answers in mathematics, in bounded time (paper: latexsympy; math-verify).

``latex.py`` normalises an answer, and ``answers.py`` splits it: it compares lists and sets as sets, tuples and
intervals element by element, and handles percent signs and plain numbers. math-verify decides on single expressions, in
a separate process (``process.py``), because its only time limit is ``signal.alarm``, which works only in the main
thread. That process is killed and replaced when it takes too long, its memory is limited, and it ends with its parent.
It must start fast and small, so nothing heavy is imported here.

Beyond math-verify: a unit, or a sign of money, may be left out, and one that is given is converted or unequal
(``latex.py``); numbers are read as programs and people write them (``1e16``, ``1_000``, ``½``, ``1.5 million``); a
percent sign may be dropped or mean a hundredth; a list is equal in any order, and repeated items (``4/\sqrt5`` or
``4\sqrt5/5``) count once; ``\pm`` is two answers; ``3:1`` is a ratio; two numerals with a base need the same base;
``i`` is imaginary; ``\log`` is natural; words are compared as words, not as products of letters; numbers that differ by
more than one part in 10,000 are unequal however small they are, where math-verify rounds to six decimals.
"""
