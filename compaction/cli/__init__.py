"""The command line: the table of commands, their options, and the process of a command: errors, streams, log lines."""
