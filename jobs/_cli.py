"""The commands' modules under their former names."""

from jobs._arguments import as_of_ms as as_of_ms
from jobs._arguments import read_log_dirs as read_log_dirs
from jobs._arguments import read_metadata_dirs as read_metadata_dirs
from jobs._arguments import read_resolver as read_resolver
from jobs._arguments import read_selector as read_selector
from jobs._arguments import usage_errors as call_errors  # noqa: F401
from jobs._command import FAILED as FAILED
from jobs._command import run_command as run_command
from jobs._command import start_early as ahead  # noqa: F401
from jobs._command import start_session as start_session
from jobs._logging import print_error as print_error
from jobs._logging import print_line as print_line
from jobs._options import CONFIGURATION_HELP as CONFIGURATION_HELP
from jobs._options import EXIT_HELP as EXIT_HELP
from jobs._options import Parser as Parser
from jobs._options import add_configuration as add_configuration
from jobs._options import add_logging as add_telling  # noqa: F401
from jobs._options import add_metrics as add_metrics
from jobs._options import add_selectors as add_selectors

__all__ = ["ahead", "add_telling", "call_errors"]
