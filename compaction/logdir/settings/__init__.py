"""The configuration of each log: from the cluster's metadata log and the sources given to the command."""
