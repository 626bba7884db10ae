"""Install this checkout into the environment of this Python: `PYTHON .ci/install.py [EXTRA]`.

Without an extra, the program installs what a sweep needs. The extras test, check and docs add what
these targets of make need.

uv installs, because it takes a quarter of the time of pip. pip installs uv itself, and installs all
packages if uv fails. Both take every version from requirements.lock. The local version of torch
(+cpu) is not in the lock, so that both can take the build that the chosen index offers.

uv does not read the settings of pip. So this program passes them on: the index, folders of wheels,
certificates, the proxy and the time-out, from variables such as PIP_FIND_LINKS and from pip.conf.
"""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

LOCK = "requirements.lock"
SWEEP = "ray,wandb,search"  # extras that a sweep needs
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
UV = Path(sys.prefix) / "bin" / "uv"
# The setting of pip, the variable of uv with the same meaning, and what uv writes between values.
SETTINGS = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "cert": ("SSL_CERT_FILE", " "),
    "proxy": ("ALL_PROXY", " "),
    "timeout": ("UV_HTTP_TIMEOUT", " "),
    "default-timeout": ("UV_HTTP_TIMEOUT", " "),
    "no-cache-dir": ("UV_NO_CACHE", " "),
}
# Python compiles a module when it first imports it, and pip compiles all modules. uv compiles none.
# These imports compile what a sweep imports: one process for each core of a small machine.
IMPORTS = ("capsweep.training.fit, capsweep.tracking.wandb_run", "capsweep.sweep.ray_tune")


def read_pip_settings(listed: str) -> dict[str, str]:
    """Return the settings of pip as environment variables of uv.

    Args:
        listed: What `pip config list` prints. Its line `global.cert='x'` is from a file, for all
            commands, `install.cert='x'` for `pip install`, and `:env:.cert='x'` from a variable.
    """
    found = {}
    lines = [line.partition("=") for line in listed.splitlines()]
    for section in ("global", "install", ":env:"):  # the last one counts
        for key, _, value in lines:
            variable, separator = SETTINGS.get(key.removeprefix(f"{section}."), ("", ""))
            if variable:
                found[variable] = separator.join(ast.literal_eval(value).split())
    if "UV_INDEX" in found:  # pip takes the best version of all indexes
        found["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    return found


def install_with_uv(target: str) -> bool:
    """Install with uv, and return whether this was possible."""
    bootstrap = [*PIP, "install", "-qq", "--constraint", LOCK, "uv"]
    if subprocess.run(bootstrap, capture_output=True).returncode:
        print("uv cannot be installed here; pip installs the packages, which takes longer")
        return False
    listed = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True).stdout
    typed = {name: value for name, value in os.environ.items() if name.startswith("UV_")}
    settings = {"UV_SYSTEM_CERTS": "true", **os.environ, **read_pip_settings(listed), **typed}
    command = [str(UV), "pip", "install", "--quiet", "--python", sys.executable]
    command += ["--constraint", LOCK, "--build-constraint", LOCK, "--editable", target]
    command += ["--no-index"] if re.search(r"\.no-index='(1|true|yes|on)'", listed) else []
    if subprocess.run(command, env=settings).returncode:
        print("uv failed, as it says above; pip installs the packages, which takes longer")
        return False
    return True


def compile_modules() -> None:
    """Compile the modules that a sweep imports, also if PYTHONDONTWRITEBYTECODE is set."""
    settings = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    commands = [[sys.executable, "-c", f"import {modules}"] for modules in IMPORTS]
    for process in [subprocess.Popen(command, env=settings) for command in commands]:
        process.wait()  # an import that fails has printed why; `make doctor` says more


def main(extra: str = "") -> int:
    """Install this checkout with the extras of a sweep and one more, and return the exit status."""
    target = f".[{SWEEP},{extra}]" if extra else f".[{SWEEP}]"
    if install_with_uv(target):
        compile_modules()
        return 0
    locked = dict.fromkeys(("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT"), os.path.abspath(LOCK))
    command = [*PIP, "install", "-qq", "--editable", target]
    return subprocess.run(command, env={**os.environ, **locked}).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
