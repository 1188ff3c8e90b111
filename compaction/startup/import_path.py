"""Where a process imports modules from: not from the working directory, and from which copy of PySpark.

``python -m`` looks in the working directory first, which may be another user's: whatever is planted there under the name of a
module would be run.

Spark adds zip files of its modules, and jars, to ``sys.path`` of its Python
processes. Modules in a zip file are compiled in every process, which takes half a second, and every task re-reads the
directories of the files. They are removed if the same modules are installed.

Tested by ``tests/startup/test_import_path.py``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

_ARCHIVES = (".zip", ".jar")
_ROOT = Path(__file__).resolve().parents[2]
#: needs no module until the working directory, the empty entry, is removed; also in Python 3.10, which has no ``-P``
_RUN = (
    "import sys; root, name = sys.argv[1:3]; del sys.argv[1:3]; sys.path[:] = [root, *filter(None, sys.path)];"
    "import runpy; runpy.run_module(name, run_name='__main__', alter_sys=True)"
)


def module_command(name: str, *arguments: str) -> list[str]:
    """What runs a module of this package as ``python -m`` would, with this interpreter and in any working directory."""
    return [sys.executable, "-c", _RUN, str(_ROOT), name, *arguments]


def drop_archives() -> None:
    """In a Python worker: removes zip files and jars from ``sys.path`` if PySpark can be imported without them."""
    _import_from([path for path in sys.path if not path.endswith(_ARCHIVES)])


def use_installed_spark() -> None:
    """In a driver under ``spark-submit``: removes the zip files of its Spark from ``sys.path`` if that Spark is the installed
    one. The user's files of ``--py-files`` are kept."""
    home = os.environ.get("SPARK_HOME")
    if home:
        bundled = Path(home) / "python" / "lib"
        _import_from([path for path in sys.path if Path(path).parent != bundled], Path(home))


def _import_from(kept: list[str], home: Path | None = None) -> None:
    installed = next((Path(path) / "pyspark" for path in kept if (Path(path) / "pyspark" / "worker.py").is_file()), None)
    if installed is None or (home is not None and not (home.is_dir() and installed.samefile(home))):
        return
    dropped = tuple(set(sys.path).difference(kept))
    sys.path[:] = kept
    for path in list(sys.path_importer_cache):
        if path.startswith(dropped):
            del sys.path_importer_cache[path]
