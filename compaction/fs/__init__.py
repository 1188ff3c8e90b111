"""Files by name and by range behind one small interface: the local file system, and an overlay that keeps changes in memory."""
