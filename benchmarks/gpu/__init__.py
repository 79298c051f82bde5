"""The steps of ``benchmarks.gpu_hour``, each a process of its own."""
