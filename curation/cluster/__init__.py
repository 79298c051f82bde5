"""The Ray cluster: its capacity, the session that joins it, its nodes and their versions, and its errors."""
