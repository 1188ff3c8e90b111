"""Shows the files of logs and log directories as text, as Kafka's dump tool does, and checks them. Reads through storage
only."""
