"""Which configuration each log has: the cluster's metadata log, and the sources that a run is given."""
