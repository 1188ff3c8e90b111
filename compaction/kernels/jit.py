"""How kernels are compiled: what Python calls with ``kernel``, what kernels call with ``inner``.

A kernel takes the functions that it calls into its own code, so that only kernels are kept on disk (see ``cache``). An inner
function is translated once for each list of argument types, whatever constants it is called with, and turned into machine code
only as a part of kernels.

The first run of a job waits for this, so that numba is told to leave out what takes time and gives these kernels nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from llvmlite.binding import Linkage
from numba import config, njit, types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.typed_passes import NativeLowering

from compaction.kernels.cache import kept

#: numba's passes for what no kernel has: closures, ``with``, literals that choose the code, array expressions
_LEFT_OUT = {
    "WithLifting",
    "InlineClosureLikes",
    "RewriteSemanticConstants",
    "DeadBranchPrune",
    "RewriteDynamicRaises",
    "MakeFunctionToJitFunction",
    "InlineInlinables",
    "FindLiterallyCalls",
    "LiteralUnroll",
    "LiteralPropagationSubPipelinePass",
    "InlineOverloads",
    "NopythonRewrites",
    "DumpParforDiagnostics",
}


def kernel(function: Callable[..., Any]) -> Any:
    """``function`` compiled when it is first called, without Python's lock, and kept on disk for other processes."""
    compiled = _compiled(function, nogil=True, no_cfunc_wrapper=True, pipeline_class=_Compiler)
    if not config.DISABLE_JIT:
        compiled._cache = kept(function) or compiled._cache
    return compiled


def inner(function: Callable[..., Any]) -> Any:
    """``function`` compiled as a part of each kernel that calls it."""
    return function if config.DISABLE_JIT else _Inner(function)


class _Inner:
    """What numba sees is the translated function, without machine code and an entry for Python."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.__doc__ = function.__doc__
        self._part = _compiled(function, no_cpython_wrapper=True, no_cfunc_wrapper=True, pipeline_class=_PartCompiler)
        # holds a weak reference
        self._numba_type_ = types.Dispatcher(self._part)

    def __call__(self, *args: Any) -> Any:
        """The result of a compiled copy, as tests want it."""
        return self._alone(*args)

    @cached_property
    def _alone(self) -> Any:
        return njit(self._function)


def _compiled(function: Callable[..., Any], **options: Any) -> Any:
    compiled = njit(**options)(function)
    if config.DISABLE_JIT:
        return compiled
    template = compiled.get_call_template

    def by_type(args: Sequence[Any], kws: Any) -> Any:
        # a constant among the arguments would have the function compiled anew for its value
        return template(tuple(map(types.unliteral, args)), kws)

    compiled.get_call_template = by_type
    return compiled


class _Compiler(CompilerBase):  # type: ignore[misc]
    """numba's compiler with fewer passes."""

    def define_pipelines(self) -> list[PassManager]:
        """The passes over a function."""
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.passes = [(self._pass(each), what) for each, what in passes.passes if each.__name__ not in _LEFT_OUT]
        passes.finalize()
        return [passes]

    def _pass(self, found: type) -> type:
        return _KernelLowering if found is NativeLowering else found


class _PartCompiler(_Compiler):
    """Ends before machine code."""

    def _pass(self, found: type) -> type:
        return _PartLowering if found is NativeLowering else found


class _Part(JITCodeLibrary):  # type: ignore[misc]
    """LLVM's form of an inner function and of what it calls. It is optimised within the kernels that it becomes a part of."""

    def _optimize_functions(self, module: Any) -> None:
        module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _PartLowering(NativeLowering):  # type: ignore[misc]
    """Makes a ``_Part`` of a function, and tells numba where other functions find it."""

    _name = "part_lowering"

    def run_pass(self, state: Any) -> bool:
        """Make it."""
        state.library = _Part(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        super().run_pass(state)
        # numba knows functions by their entries: this one is never called
        entry = [state.library].count
        state.targetctx.insert_user_function(entry, state.cr.fndesc, [state.library])
        state.cr = state.cr._replace(cfunc=entry)
        return True


class _Kernel(JITCodeLibrary):  # type: ignore[misc]
    """LLVM's form of a kernel. Its parts are for nobody else, so that those which are called once are taken in whole."""

    def _optimize_final_module(self) -> None:
        for function in self._final_module.functions:
            if not function.is_declaration and function.linkage == Linkage.linkonce_odr:
                function.linkage = Linkage.internal
        super()._optimize_final_module()


@register_pass(mutates_CFG=True, analysis_only=False)
class _KernelLowering(NativeLowering):  # type: ignore[misc]
    """Makes a ``_Kernel`` of a function."""

    _name = "kernel_lowering"

    def run_pass(self, state: Any) -> bool:
        """Make it."""
        state.library = _Kernel(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        return bool(super().run_pass(state))
