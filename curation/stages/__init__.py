"""The work of stages: takes references and returns references. It can be interrupted and called again."""
