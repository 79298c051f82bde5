"""``curate init --data``: a configuration for a user's own files, from what their columns and values look like."""

from curation.commands.init.draft import draft
from curation.commands.init.table import Table, look
from curation.commands.init.task import Task, Wishes, task_of

__all__ = ["Table", "Task", "Wishes", "draft", "look", "task_of"]
