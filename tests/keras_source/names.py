"""Under which public names the definitions of a checkout of Keras are exported."""

import ast
import functools
import pathlib
from typing import Any

BACKEND = "jax"


class Names:
    """The names of a checkout, read from its source, which is not run.

    Args:
        source: the folder that holds `keras/src`.
    """

    def __init__(self, source: pathlib.Path) -> None:
        self.source = source
        self.file_of = functools.cache(self.file_of)
        self.definitions = functools.cache(self.definitions)
        self.resolve = functools.cache(self.resolve)

    @functools.cached_property
    def public(self) -> frozenset[str]:
        """All public names, `keras.layers.Dense`."""
        found: set[str] = set()
        for file in (self.source / "keras" / "src").rglob("*.py"):
            if not file.name.endswith("_test.py") and "keras_export" in file.read_text("utf-8"):
                module = ".".join(file.relative_to(self.source).with_suffix("").parts).removesuffix(".__init__")
                found.update(*(value for value in self.definitions(module).values() if isinstance(value, list)))
        return frozenset(found)

    def file_of(self, module: str) -> pathlib.Path | None:
        """Return the file of a module such as `keras.src.losses`, or None where there is none."""
        place = self.source.joinpath(*module.split("."))
        for file in (place / "__init__.py", place.with_suffix(".py")):
            if file.is_file():
                return file
        return None

    def definitions(self, module: str) -> dict[str, list[str] | tuple[str, str]]:
        """Return what a module's body binds: public names of a definition, or (module, name) of an import.

        An import of all names of a module is bound as `*` and the module's name.
        """
        file = self.file_of(module)
        found: dict[str, list[str] | tuple[str, str]] = {}
        if file is None:
            return found
        for node in _statements(ast.parse(file.read_text("utf-8")).body):
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                exported = [name for decorator in node.decorator_list for name in _exported(decorator)]
                if exported or not isinstance(found.get(node.name), list):
                    found[node.name] = exported
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("keras"):
                for alias in node.names:
                    name = f"*{node.module}" if alias.name == "*" else alias.asname or alias.name
                    found[name] = (node.module or "", alias.name)
            elif isinstance(node, ast.Expr | ast.Assign) and isinstance(node.value, ast.Call):
                for target, exported in _exported_values(node):
                    found[target] = exported
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Name) and not isinstance(found.get(target.id), list):
                        value = node.value
                        found[target.id] = (module, value.id) if isinstance(value, ast.Name) else []
        return found

    def defined(self, module: str, name: str) -> str:
        """Return the full name of the definition that a module imports as `name`."""
        value = self.definitions(module).get(name)
        if isinstance(value, tuple) and value != (module, name):
            return self.defined(*value)
        return f"{module}.{name}"

    def constant(self, module: str, name: str) -> Any:
        """Return the value of a constant that is written as a literal, such as the names of dtypes; None for others."""
        file = self.file_of(module)
        for node in ast.parse(file.read_text("utf-8")).body if file is not None else ():
            if isinstance(node, ast.Assign) and name in [getattr(target, "id", "") for target in node.targets]:
                try:
                    return ast.literal_eval(node.value)
                except ValueError:
                    return None
        return None

    def resolve(self, module: str, name: str) -> tuple[str, ...]:
        """Return the public names of what a module calls `name`; a module's own name; nothing for what is internal."""
        asked = (module, name)
        seen, waiting = set(), [asked]
        while waiting:
            here = waiting.pop()
            if here in seen:
                continue
            seen.add(here)
            module, name = here
            bound = self.definitions(module)
            value = bound.get(name)
            if isinstance(value, tuple) and value not in seen:
                waiting.append(value)
            elif isinstance(value, list) and value:
                return tuple(value)
            elif self.file_of(f"{module}.{name}") is not None:
                return (f"{module}.{name}",)
            else:
                waiting += [(of[0], name) for key, of in bound.items() if key.startswith("*") and isinstance(of, tuple)]
        name = asked[1]  # a function of the backend behind a public one
        package = asked[0].split(".")[2] if asked[0].count(".") > 1 else ""
        return tuple(
            public
            for public in (f"keras.{place}.{name}" for place in (package, "ops", "random"))
            if public in self.public and package in ("backend", "ops", "random")
        )


def _statements(body: list[ast.stmt]) -> list[ast.stmt]:
    """The statements of a module, of the backend alone where it asks which one it is."""
    found: list[ast.stmt] = []
    for node in body:
        if isinstance(node, ast.If):
            test = ast.unparse(node.test)
            if "backend" in test and "==" in test and BACKEND not in test:
                found += _statements(node.orelse)
            else:
                found += _statements(node.body)
        elif isinstance(node, ast.Try):
            found += _statements(node.body)
        else:
            found.append(node)
    return found


def _exported(decorator: ast.expr) -> list[str]:
    """The names that `@keras_export(...)` gives."""
    if not isinstance(decorator, ast.Call) or "export" not in ast.unparse(decorator.func):
        return []
    if not decorator.args:
        return []
    try:
        names = ast.literal_eval(decorator.args[0])
    except ValueError:
        return []
    return [names] if isinstance(names, str) else list(names)


def _exported_values(node: ast.Expr | ast.Assign) -> list[tuple[str, list[str]]]:
    """Names that are exported by a call of what `keras_export(...)` gives: `x = keras_export("keras.x")(value)`."""
    call = node.value
    assert isinstance(call, ast.Call)
    exported = _exported(call.func)
    targets = node.targets if isinstance(node, ast.Assign) else call.args
    return [(target.id, exported) for target in targets if isinstance(target, ast.Name) and exported]
