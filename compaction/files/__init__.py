"""Where bytes lie: local disks, an overlay that keeps changes in memory, object stores."""
