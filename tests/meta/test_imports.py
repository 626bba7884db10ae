"""Every module imports in a fresh interpreter, and doors stay light."""

from collections.abc import Callable

from capsweep.config.roots import PACKAGE

Fresh = Callable[..., str]

HEAVY = ("torch", "torchvision", "pytorch_lightning", "ray", "wandb")
IMPORT = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)"
LOADED = f"{IMPORT}\nprint(*(name for name in {HEAVY} if name in sys.modules))".replace(
    "sys.argv[1:]", "sys.argv[1:]"
)
RAY_MODULE = "capsweep.sweep.executors.ray_tune"


def modules() -> list[str]:
    """Every public module, by name, without importing any."""
    names = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return [name for name in names if not name.endswith("__main__")]


def rooms() -> dict[str, list[str]]:
    """Modules by top-level package; those that stand alone are together in `doors`."""
    found: dict[str, list[str]] = {}
    for name in modules():
        _, *rest = name.split(".")
        is_package = bool(rest) and (PACKAGE / rest[0]).is_dir()
        found.setdefault(rest[0] if is_package else "doors", []).append(name)
    return found
