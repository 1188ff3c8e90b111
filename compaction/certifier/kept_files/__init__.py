"""What lies beside the records of a log and in its directory, as a broker reads it when it starts."""
