"""The words of a command line, applied to a sweep that was read from its file.

A key of model, routing or loss is set in the arms whose network has a routing, or in all arms if no
network has a routing. `loss.class_weight` and every other key are set in all arms. A typed key
replaces the axis or value that an arm had for this key.
"""

import itertools
import os
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from capsweep.config import compose
from capsweep.config import overrides as grammar
from capsweep.config.cell import LOGISTICS, LOGISTICS_INSIDE, get
from capsweep.config.overrides import Override, render, with_dots
from capsweep.config.words import BY_NAME, GRID, NAMES_BY_KEY, WORDS
from capsweep.errors import ConfigError
from capsweep.sweep import spec
from capsweep.sweep.spec import ROUTING, Arm, Published, Sweep, check_axis, check_seeds

ITERATIONS, RECONSTRUCTION = "routing.num_iters", "loss.reconstruction.weight"
# The word that sets an axis over each of these keys. Error messages name the word.
AXIS_WORDS = {ROUTING: "ROUTING", ITERATIONS: "ROUTING", RECONSTRUCTION: "RECON"}
ROUTED_GROUPS = ("model", ROUTING, "loss")  # groups whose keys are set only in arms that route
CLASS_WEIGHT = "loss.class_weight"  # a key of these groups for every network
GRID_ONLY = ("ZIP", "EXCLUDE", "METRIC", "BASELINE")  # words that a search does not take
# Keys that a table shows although they are logistics, because they say which data a cell saw.
SHOWN = ("limit_batches", "dataset.source")


def load_sweep(
    name: str,
    words: Mapping[str, str] | None = None,
    overrides: Sequence[str] = (),
    here: bool = False,
) -> Sweep:
    """Read a sweep file and apply the words and overrides of a command line to it.

    Args:
        name: The name of a file of sweeps/, or a path that ends in .yaml.
        words: The typed words, as values by name, such as `{"SEEDS": "3"}`.
        overrides: Texts `key=value` in Hydra's grammar. A list of values is an axis.
        here: Whether this process runs on a node of the sweep's cluster.

    Raises:
        ConfigError: A file, key or word is wrong; the message names it.
    """
    sweep, words = spec.load(name), words or {}
    chosen = apply_words(sweep, words, [*overrides, *choose_cluster(words, here)])
    return replace(chosen, command=_format_command(name, sweep, words, overrides))


def choose_cluster(words: Mapping[str, str], here: bool = False) -> list[str]:
    """Return the overrides that CLUSTER and RAY_ADDRESS stand for.

    An address without CLUSTER chooses `cluster=address`. With `here`, `cluster.address` is set to
    the Ray cluster that runs this process.

    Raises:
        ConfigError: An address was typed with CLUSTER=local or CLUSTER=slurm.
    """
    name, address = words.get("CLUSTER"), words.get("RAY_ADDRESS")
    chosen = [] if name is None else [f"cluster={name}"]
    if address is not None:
        if name in ("local", "slurm"):
            raise ConfigError(
                f"CLUSTER={name} takes no RAY_ADDRESS (got {address}); "
                "leave one of the two out, or type CLUSTER=address"
            )
        chosen = [f"cluster={name or 'address'}", render("cluster.address", address)]
        chosen += ["cluster.jobs=null"]  # so that a job server named in the environment is ignored
    if here:  # Ray sets RAY_ADDRESS for its jobs; without RAY_ADDRESS, "auto" finds the node's Ray
        chosen += [render("cluster.address", os.environ.get("RAY_ADDRESS", "auto"))]
    return chosen


def _format_command(
    name: str, sweep: Sweep, words: Mapping[str, str], overrides: Sequence[str]
) -> str:
    """Return a command that prints the table of this sweep on any machine.

    Words and keys that only say where or how cells run are left out. If the user typed the path of
    a sweep file, the command has the name of the file without its folder.
    """
    file = sweep.path.name if name.endswith(".yaml") else name
    shown = (w.name for w in WORDS if w in GRID or (w.key and not is_logistics(w.key)))
    typed = [f"{word}={words[word]}" for word in shown if word in words]
    keys = [text for text in overrides if not is_logistics(grammar.parse(text).key)]
    return shlex.join(["make", "report", f"SWEEP={file}", *typed, *keys])


def apply_words(sweep: Sweep, words: Mapping[str, str], overrides: Sequence[str] = ()) -> Sweep:
    """Apply the words and overrides of a command line to a sweep, and return the sweep.

    Raises:
        ConfigError: A word does not fit this sweep; the message names the word.
    """
    names, word_axes = _read_routing(words["ROUTING"]) if "ROUTING" in words else ([], [])
    has_numbers, is_search = bool(word_axes), sweep.search is not None
    if "RECON" in words:
        word_axes.append(_read_reconstruction(words["RECON"]))
    typed = _read_typed(words, overrides, [*word_axes, *names])
    routings = [axis for axis in (*names, *typed) if axis.key == ROUTING and axis.values]
    refused = [name for name in GRID_ONLY if name in words]
    refused += ["ROUTING"] * any(axis.values for axis in names)
    if is_search and refused:
        raise ConfigError(
            f"{', '.join(refused)}: {sweep.path.name} is a search, which has no grid; leave this "
            "out (routing=NAME chooses a routing)"
        )
    file = sweep
    if (text := words.get("BASELINE")) is not None:
        sweep = _set_baseline(sweep, text)
    if (text := words.get("ARMS")) is not None:
        sweep = _keep_arms(sweep, text)
    if (text := words.get("SEEDS")) is not None:
        sweep = replace(sweep, seeds=_read_seeds(text, file.seeds))
    sweep = _set_keys(sweep, [key for key in typed if is_search or key not in routings])
    for axis in () if is_search else routings:
        sweep = _set_routings(sweep, axis, keep_present=has_numbers)
    for axis in word_axes:
        having = {arm.name for arm in sweep.arms if axis.key in arm.keys}
        if not having:
            name = AXIS_WORDS[axis.key]
            arms = f"no chosen arm of {sweep.path.name} has the axis {axis.key}"
            raise ConfigError(f"{name}: {arms}; leave {name} out")
        sweep = _set_override(sweep, axis, having)
    for keys in _split(words.get("ZIP")):
        sweep = _couple_axes(sweep, keys)
    metric = words.get("METRIC", sweep.metric)
    if metric != sweep.metric:  # the published numbers are for the metric of the file
        sweep = replace(sweep, metric=metric, published=Published())
    sweep = replace(sweep, excluded=tuple(map(_read_excluded, _split(words.get("EXCLUDE")))))
    return replace(sweep, words=_describe_words(file, sweep, words, typed))


def _describe_words(
    file: Sweep, sweep: Sweep, words: Mapping[str, str], typed: Sequence[Override]
) -> tuple[str, ...]:
    """Return the typed choices that differ from the sweep file, sorted, such as `EPOCHS=1`.

    Equal choices have the same text, however they were typed. Words and keys that only say where or
    how cells run are left out.
    """
    texts = {name: "".join(words[name].split()) for name in ("ROUTING", "ZIP") if name in words}
    if "EXCLUDE" in words:
        texts["EXCLUDE"] = " ".join(words["EXCLUDE"].split())
    if "RECON" in words:
        weights = _read_reconstruction(words["RECON"]).values
        texts["RECON"] = ",".join(f"{weight:g}" for weight in weights)
    if len(sweep.arms) < len(file.arms):
        texts["ARMS"] = ",".join(sorted(arm.name for arm in sweep.arms))
    if sweep.baseline != file.baseline:
        texts["BASELINE"] = sweep.baseline
    if sweep.metric != file.metric:
        texts["METRIC"] = sweep.metric
    if (seeds := sorted(sweep.seeds)) != sorted(file.seeds):
        is_count = seeds == sorted(_take_seeds(file.seeds, len(seeds)))
        listed = ",".join(map(str, seeds)) + "," * (len(seeds) == 1)
        texts["SEEDS"] = str(len(seeds)) if is_count else listed
    for override in typed:
        is_in_file = all(override in arm.fixed for arm in file.arms)
        if not is_logistics(override.key) and not is_in_file:
            values = (render(override.key, value).partition("=")[2] for value in override.values)
            values = [re.sub(r"^'([0-9.]+)'$", r"\1", value) for value in values]
            name = NAMES_BY_KEY.get(override.key, override.key)
            if name == ROUTING and sweep.search is None:
                name = AXIS_WORDS[ROUTING]
            texts[name] = ",".join(values)
    return tuple(sorted(f"{name}={text}" for name, text in texts.items()))


def is_logistics(key: str) -> bool:
    """Return whether a key only says where or how a cell runs; no table shows such a key."""
    names = {*LOGISTICS, *LOGISTICS_INSIDE} - {*SHOWN}
    return any(f"{key}.".startswith(f"{name}.") for name in names)


def _read_typed(
    words: Mapping[str, str], overrides: Sequence[str], word_axes: Sequence[Override]
) -> list[Override]:
    """Read the keys that words and overrides set.

    Args:
        words: The typed words, as values by name.
        overrides: Texts `key=value` in Hydra's grammar.
        word_axes: The axes that ROUTING and RECON set. Their keys must not be typed again.

    Raises:
        ConfigError: A key is set twice, is `seed`, or cannot be an axis; the message names the key.
    """
    texts = [grammar.expand_word(n, value) for n, value in words.items() if BY_NAME[n].key]
    typed = [check_axis(text, grammar.parse(text)) for text in (*texts, *overrides)]
    keys = [override.key for override in (*typed, *word_axes)]
    if "seed" in keys:
        raise ConfigError("seed: type SEEDS instead, with a count (SEEDS=3) or a list (SEEDS=0,7)")
    for override in typed:
        key, word = override.key, (NAMES_BY_KEY | AXIS_WORDS).get(override.key)
        if keys.count(key) > 1:
            both = f"{word} and {key}" if word in words else key
            raise ConfigError(f"{both}: set twice; keep one; an axis is a list such as {key}=A,B")
        if len(override.values) > 1 and is_logistics(key):
            raise ConfigError(f"{key}: type one value; where or how cells run cannot be an axis")
    return typed


def _set_keys(sweep: Sweep, typed: Sequence[Override]) -> Sweep:
    """Set each typed key in the arms that it concerns, as the docstring of this module says."""
    every = {arm.name for arm in sweep.arms}
    keys = {override.key for override in typed} - {CLASS_WEIGHT}
    parts = {key for key in keys if key.partition(".")[0] in ROUTED_GROUPS}
    routed = {arm.name for arm in sweep.arms if parts and _find_routing(arm) is not None}
    for override in typed:
        sweep = _set_override(sweep, override, routed or every if override.key in parts else every)
    return sweep


def _find_routing(arm: Arm) -> str | None:
    """Return the routing at the first place of an arm, or None if the network does not route."""
    files = compose.compose_files((*arm.fixed, *arm.first_place)).written
    return files[ROUTING]["name"] if files["model"].get("routes") else None


def _set_routings(sweep: Sweep, routings: Override, keep_present: bool) -> Sweep:
    """Set the axis over routings in each arm that routes.

    Fixed keys of a routing, such as `routing.num_iters`, become axes too, because only some
    routings have these keys.

    Args:
        sweep: The sweep to change.
        routings: The typed routings.
        keep_present: Whether the axis has the former routings too, or only the typed routings.

    Raises:
        ConfigError: No arm routes.
    """
    arms, added = [], routings
    for arm in sweep.arms:
        if (present := _find_routing(arm)) is not None:
            axes = {axis.key: axis.values for axis in arm.axes}
            first = axes.get(ROUTING, (present,)) if keep_present else ()
            added = Override(ROUTING, tuple(dict.fromkeys((*first, *routings.values))))
            fixed = tuple(old for old in arm.fixed if old.key.partition(".")[0] != ROUTING)
            moved = [old for old in arm.fixed if old.key.startswith(f"{ROUTING}.")]
            others = (axis for axis in arm.axes if axis.key != ROUTING)
            arm = replace(arm, fixed=fixed, axes=(added, *moved, *others))
        arms.append(arm)
    if tuple(arms) == sweep.arms:
        names = ",".join(routings.values)
        raise ConfigError(f"ROUTING={names}: no arm of {sweep.path.name} routes; leave ROUTING out")
    return _add_coordinate(replace(sweep, arms=tuple(arms)), added)


def _read_routing(text: str) -> tuple[list[Override], list[Override]]:
    """Split the value of ROUTING into an axis over routings and an axis over iterations."""
    words = [word.strip() for word in text.split(",")]
    numbers = [int(word) for word in words if re.fullmatch("[0-9]{1,18}", word)]
    names = [word for word in words if not re.fullmatch("[0-9]{1,18}", word)]
    for name in sorted({*names} - {*(known := grammar.list_options(ROUTING))}):
        raise ConfigError(
            f"ROUTING={text}: {name!r} is neither a number of iterations, such as 3, nor a "
            f"routing; have {', '.join(known)}"
        )
    routings = check_axis(f"ROUTING={text}", Override(ROUTING, tuple(names)))
    axis = check_axis(f"ROUTING={text}", Override(ITERATIONS, tuple(numbers)))
    return [routings], [axis] if numbers else []


def _read_reconstruction(text: str) -> Override:
    """Read the weights of RECON, each of them `off` (0), `on` (the weight in conf/) or a number."""
    names = {"off": 0.0, "on": get(compose.cell([]).config, RECONSTRUCTION)}
    weights: list[float] = []
    for word in map(str.strip, text.split(",")):
        try:
            weights.append(names[word] if word in names else float(word))
        except ValueError:
            raise ConfigError(f"RECON={text}: {word!r} must be on, off or a number") from None
    return check_axis(f"RECON={text}", Override(RECONSTRUCTION, tuple(weights)))


def _keep_arms(sweep: Sweep, text: str) -> Sweep:
    names = {word.strip() for word in text.split(",")}
    _check_arms(sweep, f"ARMS={text}", names)
    kept = tuple(arm for arm in sweep.arms if arm.name in {*names, sweep.baseline})
    return replace(sweep, arms=kept)


def _check_arms(sweep: Sweep, where: str, names: set[str]) -> None:
    known = [arm.name for arm in sweep.arms]
    for name in sorted(names - {*known}):
        raise ConfigError(f"{where}: no arm {name!r}; {sweep.path.name} has {', '.join(known)}")


def _set_baseline(sweep: Sweep, name: str) -> Sweep:
    """Return the sweep with another baseline, which must be an arm of the file."""
    _check_arms(sweep, f"BASELINE={name}", {name})
    if any(arm.matched for arm in sweep.arms) and name != sweep.baseline:
        raise ConfigError(
            f"BASELINE={name}: {sweep.path.name} has arms matched to {sweep.baseline}; leave it out"
        )
    return replace(sweep, baseline=name)


def _set_override(sweep: Sweep, override: Override, names: Collection[str]) -> Sweep:
    """Return the sweep with a key set in the named arms."""
    arms = [_set_in_arm(arm, override) if arm.name in names else arm for arm in sweep.arms]
    return _add_coordinate(replace(sweep, arms=tuple(arms)), override)


def _set_in_arm(arm: Arm, override: Override) -> Arm:
    """Set a key in an arm, instead of the axis, interval or value that the arm had for this key.

    A key with several values becomes an axis. A key with a single value becomes an axis in two
    cases: the arm had an axis or interval for this key; or the key belongs to a routing, and the
    arm has an axis over routings, of which only some may have this key.
    """
    fixed = tuple(old for old in arm.fixed if old.key != override.key)
    is_axis = len(override.values) > 1 or override.key in arm.keys
    if not is_axis and not (override.key.startswith(f"{ROUTING}.") and ROUTING in arm.keys):
        return replace(arm, fixed=(*fixed, override))
    axes = {axis.key: axis for axis in arm.axes} | {override.key: override}
    intervals = tuple(old for old in arm.intervals if old.key != override.key)
    return replace(arm, fixed=fixed, axes=tuple(axes.values()), intervals=intervals)


def _add_coordinate(sweep: Sweep, axis: Override) -> Sweep:
    """Add the key of an axis to the row or column keys of a sweep's table, and return the sweep.

    Nothing is added if the axis has one value, if the table has the key or a key that an arm
    couples with it, or if the sweep is a search. A key becomes a column key if its group is one,
    and otherwise a row key. The row key `routing` is inserted directly after `arm`; all other keys
    are added at the end.
    """
    coupled = (keys for arm in sweep.arms for keys in arm.coupled if axis.key in keys)
    shown = {axis.key, *itertools.chain(*coupled)} & {*sweep.rows, *sweep.columns}
    if len(axis.values) < 2 or shown or sweep.search is not None:
        return sweep
    # A row is compared with the baseline in the same column, so that both have the same data.
    if any(axis.key.startswith(f"{column}.") for column in sweep.columns):
        return replace(sweep, columns=(*sweep.columns, axis.key))
    rows = [*sweep.rows]
    rows.insert(rows[:1].count("arm") if axis.key == ROUTING else len(rows), axis.key)
    return replace(sweep, rows=tuple(rows))


def _split(text: str | None) -> list[str]:
    """Split the value of a word at its semicolons."""
    return [] if text is None else [part.strip() for part in text.split(";")]


def _read_excluded(text: str) -> Mapping[str, object]:
    """Read settings such as `EPOCHS=1 batch_size=8`, and return their values by key."""
    settings = []
    for word in text.split():
        name, _, value = word.partition("=")
        key = BY_NAME[name].key if name in BY_NAME else ""
        if name == "ROUTING":
            key = ITERATIONS if value.isdecimal() else ROUTING
        settings.append(f"{key}={value}" if key else word)
    return {override.key: override.value for override in grammar.parse_single(settings)}


def _couple_axes(sweep: Sweep, text: str) -> Sweep:
    """Pair the values of axes, instead of crossing them, in each arm that has all these axes."""
    names = [word.strip() for word in text.split(",")]
    keys = tuple(with_dots(BY_NAME[n].key or n if n in BY_NAME else n) for n in names)
    if len(set(keys)) < 2 or not all(keys):
        raise ConfigError(f"ZIP={text}: type two axes or more, such as ZIP=epochs,batch_size")
    arms = []
    for arm in sweep.arms:
        if {axis.key for axis in arm.axes} >= {*keys}:
            if twice := {*keys} & {*itertools.chain(*arm.coupled)}:
                raise ConfigError(f"ZIP={text}: {min(twice)} is coupled twice; type it only once")
            arm = replace(arm, coupled=(*arm.coupled, keys))
        arms.append(arm)
    if tuple(arms) == sweep.arms:
        raise ConfigError(f"ZIP={text}: no arm of {sweep.path.name} has all of these axes")
    return replace(sweep, arms=tuple(arms))


def _read_seeds(text: str, seeds: Sequence[int]) -> tuple[int, ...]:
    """Read the value of SEEDS: a list of seeds such as `0,7` or `7,`, or a count of `seeds`."""
    is_count = "," not in text
    words = [word.strip() for word in text.removesuffix(",").split(",")]
    digits = "[1-9][0-9]{0,3}" if is_count else "[0-9]{1,18}"
    numbers = [int(word) for word in words if re.fullmatch(digits, word)]
    if len(numbers) < len(words):
        raise ConfigError(f"SEEDS={text}: must be a count of 1 to 9999, or a list: 0,1,7 or 7,")
    numbers = _take_seeds(seeds, numbers[0]) if is_count else numbers
    return check_seeds(f"SEEDS={text}", numbers)


def _take_seeds(seeds: Sequence[int], count: int) -> tuple[int, ...]:
    """Return the first `count` seeds; if there are fewer, the numbers after the largest follow."""
    return (*seeds, *range(max(seeds) + 1, max(seeds) + 1 + count))[:count]
