"""Object stores as file systems, and one file system for local paths and URIs."""
