"""``curate init --data``: drafts a configuration for a user's own files from their columns and values."""

from curation.commands.init.draft import draft_config
from curation.commands.init.table import TableFiles, look
from curation.commands.init.task import DetectedTask, Wishes, check_readable, detect_task

__all__ = ["DetectedTask", "TableFiles", "Wishes", "check_readable", "detect_task", "draft_config", "look"]
