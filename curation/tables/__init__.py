"""Lance tables: their schemas, reading, exactly-once commits, added columns, row ids, compaction, old versions."""
