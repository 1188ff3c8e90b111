"""Output on a terminal: amounts in words, tables that fit its width, the status line of a run; the files of HTML pages."""
