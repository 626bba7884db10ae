"""What the words of a command line make of a sweep.

Keys of model, routing and loss go to the arms that route (to all where none does), every other key
to all arms. A key replaces the axis or value that an arm has of it.
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
from capsweep.config.words import BY_KEY, BY_NAME, GRID, WORDS
from capsweep.errors import ConfigError
from capsweep.sweep import spec
from capsweep.sweep.spec import ROUTING, Arm, Published, Sweep, check_axis, check_seeds

ITERATIONS, RECONSTRUCTION = "routing.num_iters", "loss.reconstruction.weight"
PINNED = {
    **dict.fromkeys((ROUTING, ITERATIONS), BY_NAME["ROUTING"]),
    RECONSTRUCTION: BY_NAME["RECON"],
}
PARTS = ("model", ROUTING, "loss")  # of a network that routes
OF_GRIDS = ("ZIP", "EXCLUDE", "METRIC", "BASELINE")
# Logistics of which a table says what they make of the data set.
SHOWN = ("limit_batches", "dataset.source")


def load_sweep(
    name: str,
    words: Mapping[str, str] | None = None,
    overrides: Sequence[str] = (),
    here: bool = False,
) -> Sweep:
    """Return the sweep of a file as it is chosen: by the values of short names, and by overrides.

    here: it is driven on a node of its cluster. Raises ConfigError naming the file and key, or the
    word.
    """
    sweep, words = spec.load(name), words or {}
    chosen = apply_words(sweep, words, [*overrides, *choose_cluster(words, here)])
    return replace(chosen, command=_format_command(name, sweep, words, overrides))


def choose_cluster(words: Mapping[str, str], here: bool = False) -> list[str]:
    """Return the words of a cluster as overrides: an address is that of `cluster=address`, or of a
    file like it. Raises ConfigError for the address of a cluster that has none.
    """
    name, address = words.get("CLUSTER"), words.get("RAY_ADDRESS")
    chosen = [] if name is None else [f"cluster={name}"]
    if address is not None:
        if name in ("local", "slurm"):
            raise ConfigError(
                f"CLUSTER={name} with RAY_ADDRESS={address}: an address is that of "
                "CLUSTER=address; leave one of them out"
            )
        chosen = [f"cluster={name or 'address'}", render("cluster.address", address)]
        chosen += ["cluster.jobs=null"]  # not the environment's
    if here:  # Ray tells its jobs where they are; elsewhere on a node Ray finds it
        chosen += [render("cluster.address", os.environ.get("RAY_ADDRESS", "auto"))]
    return chosen


def _format_command(
    name: str, sweep: Sweep, words: Mapping[str, str], overrides: Sequence[str]
) -> str:
    """Return the command that prints the same table on any machine: no folder is named in it. A
    sweep file elsewhere is named as from its own folder.
    """
    file = sweep.path.name if name.endswith(".yaml") else name
    shown = (w.name for w in WORDS if w in GRID or (w.key and not is_logistics(w.key)))
    typed = [f"{word}={words[word]}" for word in shown if word in words]
    keys = [text for text in overrides if not is_logistics(grammar.parse(text).key)]
    return shlex.join(["make", "report", f"SWEEP={file}", *typed, *keys])


def apply_words(sweep: Sweep, words: Mapping[str, str], overrides: Sequence[str] = ()) -> Sweep:
    """Return the sweep as words change it. Raises ConfigError naming the word."""
    names, pinned = _read_routing(words["ROUTING"]) if "ROUTING" in words else ([], [])
    has_numbers, is_search = bool(pinned), sweep.search is not None
    if "RECON" in words:
        pinned.append(_read_reconstruction(words["RECON"]))
    typed = _read_typed(words, overrides, [*pinned, *names])
    routings = [axis for axis in (*names, *typed) if axis.key == ROUTING and axis.values]
    if is_search and (any(name.values for name in names) or any(n in words for n in OF_GRIDS)):
        raise ConfigError(
            f"{sweep.path.name} is a search: without a grid and a table it takes no "
            f"{', '.join(OF_GRIDS)} or routing variant as ROUTING"
        )
    file = sweep
    if (text := words.get("ARMS")) is not None:
        sweep = _keep_arms(sweep, text)
    if (text := words.get("SEEDS")) is not None:
        sweep = replace(sweep, seeds=_read_seeds(text))
    sweep = _set_keys(sweep, [key for key in typed if is_search or key not in routings])
    for axis in () if is_search else routings:
        sweep = _set_routings(sweep, axis, with_own=has_numbers)
    for axis in pinned:
        having = {arm.name for arm in sweep.arms if axis.key in arm.keys}
        if not having:
            name = PINNED[axis.key].name
            raise ConfigError(f"{name}: no arm of {sweep.path.name} has the axis {axis.key}")
        sweep = _set_override(sweep, axis, having)
    for keys in _split(words.get("ZIP")):
        sweep = _couple_axes(sweep, keys)
    metric = words.get("METRIC", sweep.metric)
    if metric != sweep.metric:  # what was published is of the file's metric
        sweep = replace(sweep, metric=metric, published=Published())
    if (text := words.get("BASELINE")) is not None:
        sweep = _set_baseline(sweep, text)
    sweep = replace(sweep, excluded=tuple(map(_read_excluded, _split(words.get("EXCLUDE")))))
    return replace(sweep, words=_describe_words(file, sweep, words, typed))


def _describe_words(
    file: Sweep, sweep: Sweep, words: Mapping[str, str], typed: Sequence[Override]
) -> tuple[str, ...]:
    """Return what was typed that the file of a sweep does not say itself, sorted: `EPOCHS=1`.

    Each choice has one form, whichever of its spellings was typed. Where cells run and what they
    are stored in is left out.
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
        is_count = seeds == list(range(len(seeds)))
        texts["SEEDS"] = str(len(seeds)) if is_count else ",".join(map(str, seeds))
    for override in typed:
        is_said = all(override in arm.fixed for arm in file.arms)
        if not is_logistics(override.key) and not is_said:
            values = (render(override.key, value).partition("=")[2] for value in override.values)
            values = [re.sub(r"^'([0-9.]+)'$", r"\1", value) for value in values]
            name = BY_KEY[override.key].name if override.key in BY_KEY else override.key
            if name == ROUTING and sweep.search is None:
                name = PINNED[ROUTING].name
            texts[name] = ",".join(values)
    return tuple(sorted(f"{name}={text}" for name, text in texts.items()))


def is_logistics(key: str) -> bool:
    """Return whether a key decides where or how a cell runs, and nothing that a table shows."""
    names = {*LOGISTICS, *LOGISTICS_INSIDE} - {*SHOWN}
    return any(f"{key}.".startswith(f"{name}.") for name in names)


def _read_typed(
    words: Mapping[str, str], overrides: Sequence[str], pinned: Sequence[Override]
) -> list[Override]:
    """Return the keys that words set, each once, also beside axes that are pinned. Raises
    ConfigError naming the word.
    """
    texts = [grammar.expand_word(n, value) for n, value in words.items() if BY_NAME[n].key]
    typed = [check_axis(text, grammar.parse(text)) for text in (*texts, *overrides)]
    keys = [override.key for override in (*typed, *pinned)]
    if "seed" in keys:
        raise ConfigError("seed is set by SEEDS: a count, or a list such as SEEDS=0,7")
    for override in typed:
        key, word = override.key, PINNED.get(override.key, BY_KEY.get(override.key))
        if keys.count(key) > 1:
            also = f"{word.name} and {key} are one choice" if word else f"{key} is typed twice"
            raise ConfigError(f"{also}; keep one, a list of values is an axis")
        if len(override.values) > 1 and is_logistics(key):
            raise ConfigError(f"{key} is no axis, since it decides no number; type one value")
    return typed


def _set_keys(sweep: Sweep, typed: Sequence[Override]) -> Sweep:
    """Set typed keys: those of PARTS in the arms that route, or in all, every other in all arms."""
    every = {arm.name for arm in sweep.arms}
    parts = [override for override in typed if override.key.partition(".")[0] in PARTS]
    routed = {arm.name for arm in sweep.arms if parts and _read_own_routing(arm) is not None}
    for override in typed:
        sweep = _set_override(sweep, override, routed or every if override in parts else every)
    return sweep


def _read_own_routing(arm: Arm) -> str | None:
    """Return the routing of an arm's first place; None where its network does not route."""
    files = compose.compose_files((*arm.fixed, *arm.first_place)).written
    return files[ROUTING]["name"] if files["model"].get("routes") else None


def _set_routings(sweep: Sweep, routings: Override, with_own: bool) -> Sweep:
    """Give an axis over routings to the arms that route; what they fix of one is an axis too.

    Raises ConfigError where no arm routes.
    """
    arms, added = [], routings
    for arm in sweep.arms:
        if (own := _read_own_routing(arm)) is not None:
            axes = {axis.key: axis.values for axis in arm.axes}
            first = axes.get(ROUTING, (own,)) if with_own else ()
            added = Override(ROUTING, tuple(dict.fromkeys((*first, *routings.values))))
            fixed = tuple(old for old in arm.fixed if old.key.partition(".")[0] != ROUTING)
            moved = [old for old in arm.fixed if old.key.startswith(f"{ROUTING}.")]
            others = (axis for axis in arm.axes if axis.key != ROUTING)
            arm = replace(arm, fixed=fixed, axes=(added, *moved, *others))
        arms.append(arm)
    if tuple(arms) == sweep.arms:
        names = ",".join(routings.values)
        raise ConfigError(f"ROUTING={names}: no arm of {sweep.path.name} routes")
    return _add_coordinate(replace(sweep, arms=tuple(arms)), added)


def _read_routing(text: str) -> tuple[list[Override], list[Override]]:
    """Return the axis over routings that is typed, and that of iterations, if any."""
    words = [word.strip() for word in text.split(",")]
    numbers = [int(word) for word in words if re.fullmatch("[0-9]{1,18}", word)]
    names = [word for word in words if not re.fullmatch("[0-9]{1,18}", word)]
    routings = check_axis(f"ROUTING={text}", Override(ROUTING, tuple(names)))
    axis = check_axis(f"ROUTING={text}", Override(ITERATIONS, tuple(numbers)))
    return [routings], [axis] if numbers else []


def _read_reconstruction(text: str) -> Override:
    """Return weights: off is 0, on the weight that stands in conf/, numbers are themselves."""
    names = {"off": 0.0, "on": get(compose.cell([]).config, RECONSTRUCTION)}
    weights: list[float] = []
    for word in map(str.strip, text.split(",")):
        try:
            weights.append(names[word] if word in names else float(word))
        except ValueError:
            raise ConfigError(f"RECON={text}: {word!r} is neither on, off nor a weight") from None
    return check_axis(f"RECON={text}", Override(RECONSTRUCTION, tuple(weights)))


def _keep_arms(sweep: Sweep, text: str) -> Sweep:
    names = {word.strip() for word in text.split(",")}
    _check_arms(sweep, f"ARMS={text}", names)
    kept = tuple(arm for arm in sweep.arms if arm.name in {*names, sweep.baseline})
    return replace(sweep, arms=kept)


def _check_arms(sweep: Sweep, where: str, names: set[str]) -> None:
    known = [arm.name for arm in sweep.arms]
    for name in sorted(names - {*known}):
        raise ConfigError(f"{where}: {name!r} is no arm; have {', '.join(known)}")


def _set_baseline(sweep: Sweep, name: str) -> Sweep:
    """Return the sweep with differences to another arm; the file's baseline stays in the table."""
    _check_arms(sweep, f"BASELINE={name}", {name})
    if any(arm.matched for arm in sweep.arms) and name != sweep.baseline:
        raise ConfigError(
            f"BASELINE={name}: arms of {sweep.path.name} stop where {sweep.baseline} is as good"
        )
    return replace(sweep, baseline=name)


def _set_override(sweep: Sweep, override: Override, names: Collection[str]) -> Sweep:
    """Set a key in the arms of some names."""
    arms = [_set_in_arm(arm, override) if arm.name in names else arm for arm in sweep.arms]
    return _add_coordinate(replace(sweep, arms=tuple(arms)), override)


def _set_in_arm(arm: Arm, override: Override) -> Arm:
    """Return the arm with this override in the place of the axis or value of its key, or added.

    Beside an axis over routings a key of a routing is an axis too, of those that have it.
    """
    fixed = tuple(old for old in arm.fixed if old.key != override.key)
    is_axis = len(override.values) > 1 or override.key in arm.keys
    if not is_axis and not (override.key.startswith(f"{ROUTING}.") and ROUTING in arm.keys):
        return replace(arm, fixed=(*fixed, override))
    axes = {axis.key: axis for axis in arm.axes} | {override.key: override}
    intervals = tuple(old for old in arm.intervals if old.key != override.key)
    return replace(arm, fixed=fixed, axes=tuple(axes.values()), intervals=intervals)


def _add_coordinate(sweep: Sweep, axis: Override) -> Sweep:
    """Make a new axis a coordinate of the table: a column where its group is one (dataset.source),
    the first row after the arm for routings, else the last row.
    """
    is_new = len(axis.values) > 1 and axis.key not in (*sweep.rows, *sweep.columns)
    if not is_new or sweep.search is not None:
        return sweep
    # Rows are compared to the baseline of their own column: data with the same data.
    if any(axis.key.startswith(f"{column}.") for column in sweep.columns):
        return replace(sweep, columns=(*sweep.columns, axis.key))
    rows = [*sweep.rows]
    rows.insert(rows[:1].count("arm") if axis.key == ROUTING else len(rows), axis.key)
    return replace(sweep, rows=tuple(rows))


def _split(text: str | None) -> list[str]:
    """Return the parts of a word that are separated by semicolons."""
    return [] if text is None else [part.strip() for part in text.split(";")]


def _read_excluded(text: str) -> Mapping[str, object]:
    """Return the settings of `a=1 b=2`, in which short names stand for their keys."""
    settings = []
    for word in text.split():
        name, _, value = word.partition("=")
        key = BY_NAME[name].key if name in BY_NAME else ""
        if name == "ROUTING":
            key = ITERATIONS if value.isdecimal() else ROUTING
        settings.append(f"{key}={value}" if key else word)
    return {override.key: override.value for override in grammar.parse_single(settings)}


def _couple_axes(sweep: Sweep, text: str) -> Sweep:
    """Make axes move together in the arms that have all of them."""
    names = [word.strip() for word in text.split(",")]
    keys = tuple(with_dots(BY_NAME[n].key or n if n in BY_NAME else n) for n in names)
    if len(set(keys)) < 2 or not all(keys):
        raise ConfigError(f"ZIP={text}: name two axes or more, such as ZIP=epochs,batch_size")
    arms = []
    for arm in sweep.arms:
        if {axis.key for axis in arm.axes} >= {*keys}:
            if twice := {*keys} & {*itertools.chain(*arm.coupled)}:
                raise ConfigError(f"{min(twice)} is coupled twice; name its axes together, once")
            arm = replace(arm, coupled=(*arm.coupled, keys))
        arms.append(arm)
    if tuple(arms) == sweep.arms:
        raise ConfigError(f"ZIP={text}: no arm of {sweep.path.name} has all of these axes")
    return replace(sweep, arms=tuple(arms))


def _read_seeds(text: str) -> tuple[int, ...]:
    """A count n stands for the seeds 0 .. n-1, so that a larger count keeps the earlier cells."""
    words = [word.strip() for word in text.split(",")]
    digits = "[0-9]{1,4}" if len(words) == 1 else "[0-9]{1,18}"  # a count is of cells
    numbers = [int(word) for word in words if re.fullmatch(digits, word)]
    if len(numbers) < len(words) or numbers == [0]:
        raise ConfigError(
            f"SEEDS={text}: must be a count of 1 to 9999 or a list of seeds such as 0,1,7"
        )
    return check_seeds(f"SEEDS={text}", numbers if len(numbers) > 1 else range(numbers[0]))
