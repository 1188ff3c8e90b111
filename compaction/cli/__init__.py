"""The command line: the table of commands, their options, and how a process runs one: errors, streams, log lines."""
