"""``curate export`` and ``export-student``: rows and students in the format of the Hugging Face Hub, with cards."""
