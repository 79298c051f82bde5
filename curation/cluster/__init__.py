"""The Ray cluster: what it has room for, the session that joins it, its nodes and their versions, its errors."""
