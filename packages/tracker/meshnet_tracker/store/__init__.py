"""What outlives a tracker's process: the latest calls, in SQLite. Routing beliefs do not; they are cheap to relearn."""
