"""Bad command lines: options, words, places and variables of the environment."""

from collections.abc import Mapping
from pathlib import Path
from random import Random

from bad_inputs import CODES, LONG, NEVER, STORED, Base, Case, Outcome, any_end, refused


def command_line(chance: Random, base: Base) -> Case:
    """Options and words that no command can mean."""
    draws = [_bad_option, _bad_option, _bad_option_of_another, _bad_word, _bad_place, _bad_variable]
    return chance.choice(draws)(chance, base)


OPTIONS: Mapping[str, tuple[str, ...]] = {
    "--seeds": (
        "x",
        "-1",
        "0",
        "99999999999",
        "1.5",
        "1,1",
        "nan",
        "0,-1",
        "0,18446744073709551616",
    ),
    "--routing": ("x", "0", "-1", "1,0", "1.5", "em,x", "1000000000000", "1,1", ","),
    "--recon": ("x", "-1", "nan", "inf", "on,x", "1e999", ","),
    "--dataset": ("x", "../../etc/passwd", "mnist,mnist", ",", "[", "digits,x"),
    "--model": ("x", "cnn_small,x", "../model", "[", ","),
    "--arms": ("x", "cnn,x", ",", "CNN"),
    "--epochs": ("x", "0", "-1", "nan", "1.5", "1000000000000000", "[1]", "1,1", "range(1,2,0)"),
    "--batch": ("x", "0", "-1", "nan", "1.5", "1000000000000000", "{a:1}", "range(1,100000000)"),
    "--rerun": ("x", "always,x", "1", "[]"),
    "--zip": ("x", "epochs", ",", "epochs,epochs", "no.such,seed"),
    "--exclude": ("x", "a==", "+a=1", "a=1 a=2"),
    "--metric": ("test/acuracy", "x", "/", "test/", "../x"),
    "--cluster": ("x", "../local", "[", ",", "aws,slurm"),
}
OF_SWEEP: Mapping[str, tuple[str, ...]] = {
    "--executor": ("x", "Local", "array", "ray,local"),
    "--shard": ("1/2", "0/0", "x", "-1/3"),
    "--budget": ("x", "-1s", "nan", "inf", "0", "1e999h", "9 m"),
    "--max-hours": ("x", "-1", "nan", "inf", "0", "1e999"),
    "--max-gpu-hours": ("x", "-1", "nan", "inf", "1e999"),
    "--more-seeds": ("x", "-1", "0", "1.5", "99999999999", "nan"),
    "--retry": ("x", "Failed", "1"),
}


def _bad_option(chance: Random, base: Base) -> Case:
    options = {name: values for name, values in OPTIONS.items()}
    command = chance.choice(["plan", "plan", "report", "sweep"])
    if command == "sweep":
        options |= OF_SWEEP
    if command == "report":
        options.pop("--cluster")
    name = chance.choice(sorted(options))
    value = chance.choice([*options[name], *options[name], *NEVER])
    argv = [command, "small.yaml", *STORED, "logger=csv", f"{name}={value}"]
    if command == "sweep":
        argv.append("--executor=local")
        if name == "--executor":
            argv[-2:] = [argv[-2]]
    return Case(f"{command} {name}={value[:40]!a}", argv, refused())


NUMBERS = ("x", "-1", "0", "nan", "1.5", "", "1e999")
MAKE = ("data", "make", "multimnist", "--dry-run", "--executor=local")
ATTACK = ("eval", "attack", "small.yaml", *STORED, "logger=csv")
OF_OTHERS: tuple[tuple[tuple[str, ...], str, tuple[str, ...]], ...] = (
    (MAKE, "--pairs", NUMBERS),
    (MAKE, "--shards", NUMBERS),
    (MAKE, "--executor", ("x", "", "array")),
    (ATTACK, "--eps", ("x", "-1", "0", "nan", "", "1e999", "0.1,x", ",", "inf")),
    (ATTACK, "--steps", NUMBERS),
    (ATTACK, "--restarts", NUMBERS),
    (ATTACK, "--examples", NUMBERS),
    (ATTACK, "--method", ("x", "", "fgsm,x")),
    (ATTACK, "--eps-scale", ("x", "")),
    (ATTACK, "--device", ("x", "cuda:99", "cpu:x")),
    (("eval", "ensemble", "small.yaml", *STORED, "logger=csv"), "--metric", ("x", "test/acuracy")),
    (("wandb", "sync", *STORED), "--jobs", NUMBERS),
    (("wandb", "sync", *STORED), "--timeout", ("x", "-1", "0", "nan", "")),
    (("report", "small.yaml", *STORED, "logger=csv"), "--evals", ("x", ",", "couplings,x")),
    (("ledger", "ls", *STORED), "--status", ("x", "finished", "", "Done")),
    (("status",), "--address", ("x", "http://[", "ray://", "http://a b", "://")),
    (("stop", "x"), "--address", ("x", "http://[", "http://x:99999999", "ftp://x")),
    (("attach", "x"), "--cluster", ("x", "../local", "")),
    (("bench", "routing"), "--publish", ("/dev/null", "small.yaml", "no/such", ".")),
    (("train", "--cfg", "job"), "--config-name", ("x", "../train", "")),
    (("train", "--cfg", "job"), "--config-dir", ("/nonexistent", "small.yaml")),
    (("train", "--cfg", "job"), "--package", ("x", "a.b")),
    (("train",), "--cfg", ("x", "")),
    (("train",), "--multirun", ("seed=1,2",)),
)


def _bad_option_of_another(chance: Random, base: Base) -> Case:
    before, option, values = chance.choice(OF_OTHERS)
    value = chance.choice(values)
    return Case(f"{before[:2]} {option}={value!a}", [*before, f"{option}={value}"], refused())


WORDS = (
    "-",
    "--",
    "--nonsense",
    "-x",
    "=",
    "a",
    "=1",
    "no.such.key=1",
    "+a=1",
    "~model",
    "é=1",
    "a=",
)


def _bad_word(chance: Random, base: Base) -> Case:
    commands = (
        ["plan", "small.yaml"], ["report", "small.yaml"], ["info"], ["train", "--cfg", "job"],
        ["ledger", "ls"], ["ledger", "show"], ["ledger", "nonsense"], ["nonsense"], ["eval"],
        ["data", "info"], ["data", "verify"], ["ledger", "show", "zz"], ["ledger", "rm", ""],
        ["ledger", "compare", "zz", "zz"], ["ledger", "release", ""], ["ledger", "ls", "--status"],
        ["plan", "nonsense"], ["plan", "../small.yaml"], ["plan", "no.yaml"], ["plan", "."],
        ["eval", "couplings", "zz"], ["ledger", "import", "."], ["ledger", "ls", "--status", "x"],
    )  # fmt: skip
    argv = list(chance.choice(commands))
    word = chance.choice([*WORDS, LONG, CODES, "\udc80", "=".join([LONG, LONG])])
    harmless = word == "--" and argv[:2] in (["plan", "small.yaml"], ["ledger", "ls"], ["info"])
    judge = any_end if harmless or word == "--" else refused()
    return Case(f"{argv} {word[:40]!a}", [*argv, word], judge)


PLACES = (
    "s3://", "s3://[", "gs://", "http://x/y", "s3://a:b@c/d", "file://", "small.yaml",
    "small.yaml/x", "/dev/null", "/dev/null/x", "/proc/self/mem", LONG, f"{LONG}/x", f"a{CODES}",
    "\udc80", "s3://b/../c", "://", "x://y", "/proc/1/x",
)  # fmt: skip


def _bad_place(chance: Random, base: Base) -> Case:
    option = chance.choice(["--storage", "--ledger"])
    place = chance.choice(PLACES)
    commands = (
        ["plan", "small.yaml"], ["report", "small.yaml"], ["ledger", "ls"], ["ledger", "gc"],
        ["ledger", "show", "ab"], ["ledger", "import", "x.tar"], ["ledger", "export", "y.tar"],
        ["ledger", "failures", "small.yaml"], ["sweep", "small.yaml", "--executor=local"],
    )  # fmt: skip
    argv = [*chance.choice(commands), f"{option}={place}"]
    # A ledger that is not there is empty, which `ls` and `plan` may tell in their own way.
    reads = argv[0] != "sweep" and argv[1] != "import"
    if not reads and place in (f"a{CODES}", "\udc80"):
        argv = ["plan", "small.yaml", f"{option}={place}"]  # a folder may have this name
    judge = any_end if reads else _refused_place
    return Case(f"{argv[:2]} {option}={place[:40]!a}", argv, judge)


def _refused_place(outcome: Outcome, folder: Path) -> str | None:
    """Something cannot be written there. A folder with an odd name can."""
    return refused()(outcome, folder) if outcome.status not in (0, 1) else None


VARIABLES = {
    "STORAGE": ("", "small.yaml", "s3://", f"a{CODES}", LONG, "/dev/null/x"),
    "DATA_DIR": ("", "small.yaml", LONG),
    "WANDB_MODE": ("", "nonsense", CODES),
    "WANDB_API_KEY": ("", "x", CODES),
    "WANDB_BASE_URL": ("", "nonsense", "http://["),
    "WANDB_DIR": ("/dev/null/x", LONG),
    "RAY_ADDRESS": ("", "nonsense", "ray://"),
    "COLUMNS": ("", "0", "-1", "x", "99999999999999"),
    "XDG_CACHE_HOME": ("", "relative", "/dev/null"),
    "HOME": ("", "/dev/null"),
    "LANG": ("C", "nonsense"),
    "NO_COLOR": ("",),
    "OMP_NUM_THREADS": ("x", "-1"),
}


def _bad_variable(chance: Random, base: Base) -> Case:
    name = chance.choice(sorted(VARIABLES))
    value = chance.choice(VARIABLES[name])
    argv = chance.choice(
        [["plan", "small.yaml"], ["ledger", "ls"], ["info"], ["report", "small.yaml"], ["doctor"]]
    )
    return Case(f"{argv} with {name}={value[:40]!a}", argv, any_end, env={name: value})
