"""The architecture as a test: who may import whom, and which half of the package needs no MLX.

`GROUPS` is the table: the modules of a group import each other (without a circle) and the groups named beside them,
nothing else. A group is a package, but for modules that are named by themselves.
"""
from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import mlx_native_server

PACKAGE = Path(mlx_native_server.__file__).parent
NAME = "mlx_native_server"

GROUPS: dict[str, tuple[set[str], set[str]]] = {
    # group: (its packages and modules, the groups that it may import)
    "values": ({"__init__", "protocol", "config"}, set()),
    "parsers": ({"parsers"}, {"values"}),
    "prompt": ({"prompt"}, {"values"}),
    "answer": ({"answer"}, {"values", "parsers"}),
    "turn": ({"service", "turn"}, {"values", "parsers", "prompt", "answer"}),
    "monitor": ({"monitor"}, {"values"}),
    "web": ({"web"}, {"values", "answer", "turn", "monitor"}),
    "policy": (
        {f"engine.{name}" for name in ("memory", "queueing", "scheduling", "cache", "prefix_tree", "disk", "disk_writer", "state_file", "plan")},
        {"values"},
    ),
    "engine": ({"engine"}, {"values", "policy"}),
    "models": ({"models"}, {"values", "parsers"}),
    "commands": ({"render", "replay"}, {"values", "prompt", "answer"}),
    "operate": ({"operate"}, {"values", "policy", "models"}),
    "model check": ({"operate.modelcheck", "operate.bench"}, {"values", "policy", "engine", "models"}),
    "serve": ({"serve"}, {"values", "policy", "turn", "monitor", "web", "engine", "models", "operate"}),
    "command line": ({"__main__"}, {"values", "models", "operate"}),
}
MLX = {"mlx", "mlx_lm"}
TOKENIZERS = {"transformers", "tokenizers"}
THIRD_PARTY = {  # module or package: what it may import from outside of the standard library
    "engine": MLX, "models.loading": MLX, "models.tiny": MLX | TOKENIZERS, "operate.bench": MLX,
    "models.hub": {"mlx_lm", "huggingface_hub", "tqdm"}, "models.tokens": {"mlx_lm"} | TOKENIZERS, "models.template": {"jinja2", "transformers"},
}  # fmt: skip
WITHOUT_MLX = {"models.tokens": {"tokenizer_utils"}, "models.hub": {"utils"}}  # what these use of mlx_lm: they touch no array
NEEDS_LIBRARIES = set(THIRD_PARTY) | {"serve", "operate.modelcheck"}
NAMED = {member for members, _ in GROUPS.values() for member in members} | NEEDS_LIBRARIES


def modules() -> dict[str, Path]:
    """Dotted name inside the package -> file; a package stands for its `__init__`."""
    names = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)] = path
    return names


MODULES = modules()


def layer(module: str) -> str:
    """The name by which the tables know a module: its own, or else its package's."""
    return module if module in NAMED else module.split(".")[0]


def group(module: str) -> str:
    names = {member: name for name, (members, _) in GROUPS.items() for member in members}
    return names.get(module) or names[module.split(".")[0]]


def imports(module: str) -> tuple[set[str], set[str]]:
    """What a file imports: modules of this package, and full names from elsewhere."""
    path, inside, outside = MODULES[module], set(), set()
    package = [NAME, *path.relative_to(PACKAGE).parent.parts]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join([*package[: len(package) - node.level + 1], *filter(None, [node.module])]) if node.level else node.module
            names = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.split(".")[0] == NAME:
                inside.add(own_module(name))
            else:
                outside.add(name)
    return inside, outside


def own_module(name: str) -> str:
    """`mlx_native_server.protocol.Job` -> `protocol`."""
    parts = name.split(".")[1:]
    while parts and ".".join(parts) not in MODULES:
        parts.pop()
    return ".".join(parts) or "__init__"


def test_every_module_is_in_the_table() -> None:
    known = [member for members, _ in GROUPS.values() for member in members]
    assert len(known) == len(set(known))
    assert {module.split(".")[0] for module in MODULES} <= set(known)


def test_the_tables_name_only_modules_that_exist() -> None:
    named = {member for members, _ in GROUPS.values() for member in members} | set(THIRD_PARTY) | set(WITHOUT_MLX)
    assert named - set(MODULES) == set()


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_keep_to_the_table(module: str) -> None:
    own = group(module)
    allowed = {own} | GROUPS[own][1]
    assert [name for name in sorted(imports(module)[0]) if group(name) not in allowed] == []


@pytest.mark.parametrize("module", sorted(MODULES))
def test_mlx_and_other_libraries_are_imported_only_where_the_table_says(module: str) -> None:
    allowed = THIRD_PARTY.get(layer(module), set())
    outside = imports(module)[1]
    assert sorted(name for name in outside if name.split(".")[0] not in sys.stdlib_module_names | allowed | {"__future__"}) == []
    if module in WITHOUT_MLX:
        assert {name.split(".")[1] for name in outside if name.startswith("mlx_lm.")} <= WITHOUT_MLX[module]


def test_no_circles() -> None:
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join([*path, module])
        if module not in done:
            for name in sorted(imports(module)[0] - {module, "__init__"}):
                visit(name, (*path, module))
            done.add(module)

    for module in sorted(MODULES):
        visit(module, ())


@pytest.mark.parametrize("module", sorted(MODULES))
def test_no_import_is_hidden_in_a_function(module: str) -> None:
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    assert [node.lineno for function in functions for node in ast.walk(function) if isinstance(node, (ast.Import, ast.ImportFrom))] == []


@pytest.mark.parametrize("module", sorted(name for name in MODULES if layer(name) not in NEEDS_LIBRARIES))
def test_the_pure_half_imports_in_a_bare_interpreter(module: str) -> None:
    """`-S` leaves site-packages out: only the standard library is there."""
    script = f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r}); import {NAME}.{module}"
    done = subprocess.run([sys.executable, "-S", "-c", script], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
