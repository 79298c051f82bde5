"""Random source files, configurations and damaged run directories: the right result, or a refusal in one line.

A wrong row, another exception than ours, or a message of several lines or with characters that act is a failure, which
hypothesis makes as small as it can. ``python -m benchmarks.fuzz`` is the long form.
"""
