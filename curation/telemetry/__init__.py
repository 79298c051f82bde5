"""What a run says while it works: its standing, progress lines, Ray metrics, experiment trackers."""
