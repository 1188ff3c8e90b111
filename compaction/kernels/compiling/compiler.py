"""Compiles kernels in little more than half of the time that numba's own compiler takes.

- Inner functions are compiled only as far as kernels need them: to LLVM's intermediate code, which is linked into each kernel
  that calls them. numba would optimise each of them, with its callees, and translate it to machine code that nothing
  runs. A kernel is still optimised with its callees.
- Passes for unused features are omitted: closures, array expressions, inlining, ``literal_unroll``, ``objmode``.
- The signature of a builtin function is determined once for the same types of arguments. numba tries the overloads of ``+`` for
  each sum, several times.

All but the last use numba's extension points for compilers, and methods of its code library.
"""

from __future__ import annotations

import logging
from typing import Any, ClassVar

from numba import _dynfunc
from numba.core import typed_passes, types, untyped_passes
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.entrypoints import init_all

_LOGGER = logging.getLogger(__name__)


def load_extensions() -> None:
    """Load numba's extensions of installed packages, as numba would before its first compilation.

    Kernels need none of them: one that fails, and malformed entry points of any package, are a warning.
    """
    try:
        init_all()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also SystemExit
        _LOGGER.warning("extensions of numba are not loaded: %s: %s", type(error).__name__, error)


load_extensions()

_signature: Any = types.Function.get_call_type
_signatures: dict[tuple[Any, ...], Any] = {}


def _remembered_signature(function: Any, context: Any, args: Any, kws: Any) -> Any:
    """``types.Function.get_call_type``, once for the same arguments."""
    # it does not depend on the values of numbers
    plain = tuple(getattr(argument, "literal_type", argument) for argument in args)
    if all(isinstance(argument, types.Number) for argument in plain):
        args = plain
    key = (function, context, tuple(args), *kws.items())
    signature = _signatures.get(key)
    if signature is None:
        signature = _signatures[key] = _signature(function, context, args, kws)
    return signature


setattr(types.Function, "get_call_type", _remembered_signature)  # noqa: B010 - numba declares it as a method


class _Part(JITCodeLibrary):  # type: ignore[misc]
    """The intermediate code of an inner function and of those that it calls, to be linked into kernels."""

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        """Nothing: kernels are optimised."""

    def _finalize_final_module(self) -> None:
        """Nothing is added to the code of the process."""
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _PartLowering(typed_passes.NativeLowering):  # type: ignore[misc]
    """Lowers an inner function into a ``_Part``."""

    _name = "part_lowering"

    def run_pass(self, state: Any) -> bool:
        """Sets ``state.library`` and ``state.cr``."""
        state.library = _Part(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        super().run_pass(state)
        lowered = state.cr
        # identifies the function; has no code
        entry = _dynfunc.make_function(lowered.fndesc.lookup_module(), state.func_id.func_name, "", 0, lowered.env, ())
        state.targetctx.insert_user_function(entry, lowered.fndesc, [state.library])
        state.cr = lowered._replace(cfunc=entry)
        return True


class KernelCompiler(CompilerBase):  # type: ignore[misc]
    """The compiler of a kernel."""

    lowering: ClassVar[Any] = typed_passes.NativeLowering

    def define_pipelines(self) -> list[PassManager]:
        """The passes, in order."""
        passes = PassManager("kernel")
        for compiler_pass in (
            untyped_passes.TranslateByteCode,
            untyped_passes.FixupArgs,
            untyped_passes.IRProcessing,
            untyped_passes.GenericRewrites,
            untyped_passes.ReconstructSSA,
            typed_passes.NopythonTypeInference,
            typed_passes.PreLowerStripPhis,
            typed_passes.IRLegalization,
            typed_passes.AnnotateTypes,
            self.lowering,
            typed_passes.NoPythonBackend,
        ):
            passes.add_pass(compiler_pass)
        passes.finalize()
        return [passes]


class PartCompiler(KernelCompiler):
    """The compiler of an inner function."""

    lowering = _PartLowering
