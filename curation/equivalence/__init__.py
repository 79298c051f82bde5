r"""Whether two final answers of mathematics say the same, in bounded time (paper: latexsympy; here math-verify).

An answer is rewritten (``latex.py``) and taken apart (``answers.py``): lists and sets as sets, tuples and intervals
place by place, percent signs, plain numbers. Single expressions are left to math-verify, in a process of its own
(``process.py``): its only bound is ``signal.alarm``, which knows the main thread alone. That process is killed and
replaced when it takes too long, its memory is limited, and it ends with its parent; it starts quickly and small, so
nothing heavy is imported here.

Beyond math-verify: units, currency and degree signs are dropped; a percent sign may be dropped or mean a hundredth; a
list is equal in any order, and what it repeats (``4/\sqrt5`` or ``4\sqrt5/5``) counts once; ``\pm`` is two answers;
``3:1`` is a ratio; two numerals with a base need the same base; ``i`` is imaginary; ``\log`` is natural; words are
compared as words, not as products of letters; numbers that differ by more than one part in 10,000 are unequal however
small they are, where math-verify rounds to six decimals.
"""
