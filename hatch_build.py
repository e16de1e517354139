"""Compiles the noise kernel (src/hush/_internal/_noise.c) when a wheel or an editable install is built.

The library goes to build/, never into the source tree, so that a wheel built without a compiler cannot contain an old
one. A wheel contains it next to its source; an editable install finds it in build/ (`hush._internal.noise_kernel`).
Without a compiler the wheel is pure, and numpy computes the same numbers. The environment variable HUSH_PURE=1 skips
the compiler; HUSH_PURE=0 makes a failed compilation an error, which release builds use. CC names the compiler.

    python hatch_build.py        compile for a source tree that is not installed
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
SOURCE = ROOT / "src/hush/_internal/_noise.c"
FLAGS = ["-O3", "-std=gnu11", "-fPIC", "-shared", "-fvisibility=hidden", "-ffp-contract=off", "-fno-math-errno"]
FLAGS += ["-fno-trapping-math"]


def compile_kernel(root: Path = ROOT) -> Path | None:
    """The compiled library in build/, or None without a compiler that works."""
    wanted = os.environ.get("HUSH_PURE", "")
    if wanted == "1":
        return None
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()
    target = root / "build" / f"hush-noise-{digest[:16]}.so"
    target.parent.mkdir(exist_ok=True)
    part = target.with_suffix(f".{os.getpid()}")
    compiler = shlex.split(os.environ.get("CC", "cc"))
    command = [*compiler, *FLAGS, f'-DHUSH_SOURCE="{digest}"', str(SOURCE), "-o", str(part)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
        os.replace(part, target)
    except (OSError, subprocess.CalledProcessError) as error:
        if wanted == "0":
            raise RuntimeError(
                f"the noise kernel does not compile: {getattr(error, 'stderr', None) or error}"
            ) from error
        sys.stderr.write("hush: no C compiler works here, so numpy computes the noise: the same numbers, slower\n")
        return None
    return target


try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run as a script
    BuildHookInterface = object


class NoiseKernel(BuildHookInterface):  # type: ignore[type-arg, misc]
    """Adds the compiled kernel to a wheel, whose tag then names the platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        library = compile_kernel(Path(self.root))
        if library is not None and version != "editable":
            build_data["force_include"][str(library)] = "hush/_internal/_noise.so"
            build_data["pure_python"] = False
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["tag"] = f"py3-none-{platform}"


if __name__ == "__main__":
    sys.stdout.write(f"{compile_kernel() or 'no library'}\n")
