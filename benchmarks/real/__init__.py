"""Trust on a real pretrained teacher: tasks, arms, and the bench (``python -m benchmarks.real``)."""
