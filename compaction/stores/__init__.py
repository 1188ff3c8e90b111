"""Object stores as file systems, and the file system that takes every path to the right one."""
