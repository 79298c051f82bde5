"""The work of stages, which take and return references. It can be interrupted and called again."""
