"""The files beside the records of a log and in its log directory, which a broker reads when it starts."""
