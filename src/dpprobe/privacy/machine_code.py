"""Caches machine code of Numba functions: a module's functions are compiled or loaded together.

Numba's own cache stores each function separately. Processes that start with one empty cache would
load some functions from each other and compile the rest; mixed code differs in the last bits.
`MachineCode` stores all functions of a module in one file. A process reads the module's file, or
compiles every function in the order of the module and renames its own file into place. So functions
of two compilations are never mixed, and no lock is needed. Compiled and loaded code are linked in
the same order.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import pickle
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from dpprobe.files.atomic_writes import atomic_path

logger = logging.getLogger("dpprobe")

# Numba's settings that change the generated code.
_SETTINGS = (
    "OPT",
    "LOOP_VECTORIZE",
    "SLP_VECTORIZE",
    "ENABLE_AVX",
    "CPU_NAME",
    "CPU_FEATURES",
    "BOUNDSCHECK",
    "DEBUGINFO_DEFAULT",
)
_DIGEST = hashlib.sha256().digest_size


class MachineCode:
    """The compiled functions of a module: decorate each with `jit`, then call `keep` once.

    The cache file's name contains a hash of the module's source, of the modules whose compiled
    functions it calls, of the processor, and of Numba's version and settings. So different kinds of
    processors can share a cache folder.
    """

    # The names of the modules that this process has compiled or loaded completely.
    ready: ClassVar[set[str]] = set()

    def __init__(self, source: str, *called: str) -> None:
        """Reads the machine code of the module at the path `source`, if a cache folder has it.

        `called` are the files of other modules whose compiled functions this module calls.
        """
        self._source, self._called = Path(source), [Path(one) for one in called]
        self.name = f"{self._source.stem}-{self._hash_dependencies()}"
        self._parts = self._read_file()
        self._loaded: dict[str, Any] | None = None
        self._complete = bool(self._parts)

    def jit(
        self, *signatures: str, fastmath: frozenset[str] = frozenset()
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Makes a decorator that compiles a function, or loads it from the cache.

        Args:
          signatures: types in Numba's notation; without any, the function is compiled for each
            call's types.
          fastmath: LLVM's flags for faster arithmetic. Without "nnan" and "ninf" NaN and infinity
            keep their meaning.
        """
        import numba  # heavy: only modules with compiled functions need it

        def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
            made: Any = numba.njit(
                nogil=True, error_model="numpy", fastmath=set(fastmath) or False
            )(function)
            if _numba_setting("DISABLE_JIT"):
                return function
            made._cache = _make_part(self, function)
            for signature in signatures:
                made.compile(signature)
            if signatures:
                made.disable_compile()
            return made

        return compiled

    def keep(self) -> None:
        """Writes functions that this process compiled into a writable cache folder, if any."""
        self.ready.add(self.name)
        if self._complete or not self._parts:
            return
        self._complete = True
        content = pickle.dumps(self._parts)
        refusals = []
        for folder in self.list_folders():
            try:
                folder.mkdir(parents=True, exist_ok=True)
                with atomic_path(folder / self.name) as path:
                    path.write_bytes(hashlib.sha256(content).digest() + content)
            except OSError as error:
                refusals.append(str(error))
            else:
                return
        logger.info(
            "machine code of %s could not be cached (%s); set NUMBA_CACHE_DIR to compile only once",
            self._source.name,
            "; ".join(refusals),
        )

    def list_folders(self) -> list[Path]:
        """Lists the folders of Numba's own cache, in Numba's order."""
        from numba.misc.appdirs import AppDirs  # heavy

        in_home = AppDirs("numba", appauthor=False).user_cache_dir
        in_tree = self._source.parent / "__pycache__"
        folders = [_numba_setting("CACHE_DIR"), in_tree, in_home]
        return [Path(folder).absolute() for folder in folders if folder]

    def load(self, key: str, context: Any) -> Any:
        """Returns a function from the cache file; None while the module is being compiled.

        All functions are linked at the first call, in the order in which they were compiled.
        """
        from numba.core.compiler import CompileResult  # heavy

        if not self._complete:
            return None
        if self._loaded is None:
            context.refresh()
            self._loaded = {
                name: CompileResult._rebuild(context, *pickle.loads(part))
                for name, part in self._parts.items()
            }
        return self._loaded.get(key)

    def add_code(self, key: str, result: Any) -> None:
        """Adds a compiled function to the file that `keep` writes; does nothing after `keep`."""
        from numba.core.serialize import dumps  # heavy

        if self._complete:
            return
        if result.library.has_dynamic_globals:
            raise ValueError(f"{key}: addresses of this process cannot be cached")
        self._parts[key] = dumps(result._reduce())

    def _hash_dependencies(self) -> str:
        import llvmlite  # heavy
        import numba
        from llvmlite import binding
        from numba.core.registry import cpu_target

        parts = [
            self._source.read_bytes(),
            [one.read_bytes() for one in self._called],
            Path(__file__).read_bytes(),
            platform.python_version(),
            numba.__version__,
            llvmlite.__version__,
            binding.get_host_cpu_features().flatten(),
            cpu_target.target_context.codegen().magic_tuple(),
            [_numba_setting(name) for name in _SETTINGS],
        ]
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

    def _read_file(self) -> dict[str, bytes]:
        for folder in self.list_folders():
            try:
                content = (folder / self.name).read_bytes()
            except OSError:
                continue
            if hashlib.sha256(content[_DIGEST:]).digest() == content[:_DIGEST]:
                parts: dict[str, bytes] = pickle.loads(content[_DIGEST:])
                return parts
        return {}


def _numba_setting(name: str) -> Any:
    import numba  # heavy

    return getattr(numba.config, name, None)


def _make_part(code: MachineCode, function: Callable[..., Any]) -> Any:
    """Returns the cache of one function, in Numba's form."""
    from numba.core.caching import NullCache  # heavy

    name = f"{function.__qualname__}:{function.__code__.co_firstlineno}"

    class Part(NullCache):
        def load_overload(self, signature: Any, context: Any) -> Any:
            return code.load(f"{name}:{signature}", context)

        def save_overload(self, signature: Any, result: Any) -> None:
            code.add_code(f"{name}:{signature}", result)

    return Part()


@functools.cache
def processor_name() -> str:
    """Returns the processor's name with LLVM's name for it: "AMD EPYC 9B14 (znver4)"."""
    from llvmlite import binding  # heavy

    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = (models or [platform.processor() or platform.machine()])[0]
    return f"{name} ({binding.get_host_cpu_name()})"
