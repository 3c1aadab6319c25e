"""`make release-check`: wheel and sdist are built, complete, and run in a clean environment without the clone.

The environment has what a user's `pip install` brings, in the versions of `constraints.txt`.
"""

import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile

ROOT = pathlib.Path(__file__).parents[2]
IN_WHEEL = ("keras_dist/__init__.py", "keras_dist/py.typed", "keras_dist/cli/demo.toml", "keras_dist/KERAS.md")
IN_SDIST = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "SECURITY.md", "CITATION.cff", "docs/conf.py")


def main() -> None:
    """Build, look, install and run; raise where one fails."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        _run(sys.executable, "-m", "build", "--outdir", folder / "dist", ROOT)
        (wheel,), (sdist,) = (folder / "dist").glob("*.whl"), (folder / "dist").glob("*.tar.gz")
        _check_files(wheel, sdist)
        venv.create(folder / "venv", with_pip=True)
        python = folder / "venv" / "bin" / "python"
        install = (python, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "-c", ROOT / "constraints.txt")
        _run(*install, wheel)
        _try(python, folder)
        _run(*install, "--force-reinstall", "--no-deps", sdist)
        _try(python, folder)
    print(f"{wheel.name} and {sdist.name} install and run")


def _check_files(wheel: pathlib.Path, sdist: pathlib.Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        inside = archive.namelist()
    missing = {*IN_WHEEL} - {*inside}
    beside = {name.partition("/")[0] for name in inside}
    with tarfile.open(sdist) as archive:
        missing |= {*IN_SDIST} - {each.partition("/")[2] for each in archive.getnames()}
    if missing or not all(re.fullmatch(r"keras_dist(-.*\.dist-info)?", name) for name in beside):
        raise SystemExit(f"missing: {sorted(missing)}; in the wheel: {sorted(beside)}")


def _try(python: pathlib.Path, folder: pathlib.Path) -> None:
    """Run the command and the ten lines of README, outside of the clone."""
    ten_lines = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[0]
    _run(python.with_name("keras-dist"), "--version", cwd=folder)
    _run(python, "-c", ten_lines, cwd=folder)


def _run(*command: object, cwd: pathlib.Path | None = None) -> None:
    print("$", *(str(each).partition("\n")[0] for each in command), flush=True)
    subprocess.run([*map(str, command)], cwd=cwd, check=True)


if __name__ == "__main__":
    main()
