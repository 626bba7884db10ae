"""What the words of a command line change about a sweep.

Keys of model, routing and loss go to the arms that route (to all where none does), every other key
to all arms. A key replaces the axis or value that an arm has of it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from capsweep.config import compose
from capsweep.config import overrides as grammar
from capsweep.config.cell import LOGISTICS, LOGISTICS_INSIDE, get
from capsweep.config.overrides import Override, render, with_dots
from capsweep.config.words import BY_KEY, BY_NAME, GRID
from capsweep.errors import ConfigError
from capsweep.sweep import spec
from capsweep.sweep.arms import ROUTING, Arm
from capsweep.sweep.spec import Published, Sweep, check_axis, check_seeds, read_place

ITERATIONS, RECONSTRUCTION = "routing.num_iters", "loss.reconstruction.weight"
PARTS = ("model", ROUTING, "loss")  # of a network that routes
OF_GRIDS = ("ZIP", "EXCLUDE", "METRIC", "BASELINE")
# Logistics of which a table says what they make of the data set.
SHOWN = ("limit_batches", "dataset.source")


def load_sweep(
    name: str, words: Mapping[str, str] | None = None, overrides: Sequence[str] = ()
) -> Sweep:
    """Return the sweep of a file as it is chosen: by the values of short names, and by overrides.

    Raises ConfigError naming the file and key, or the word.
    """
    sweep = spec.load(name)
    words, overrides = _spell_routing(sweep, words or {}, overrides)
    chosen = apply_words(sweep, words, overrides)
    return replace(chosen, words=describe_words(sweep, words, overrides))


def _spell_routing(
    sweep: Sweep, words: Mapping[str, str], overrides: Sequence[str]
) -> tuple[Mapping[str, str], list[str]]:
    """Return words and overrides in which names of routings are those of ROUTING."""
    typed = [text for text in overrides if text.partition("=")[0].strip() == ROUTING]
    if not typed or sweep.search is not None:
        return words, [*overrides]
    if "ROUTING" in words or len(typed) > 1:
        raise ConfigError(f"ROUTING and {typed[-1]} are one choice; keep one of them")
    names = ",".join(map(str, grammar.parse(typed[0]).values))
    return {**words, "ROUTING": names}, [text for text in overrides if text not in typed]


def apply_words(sweep: Sweep, words: Mapping[str, str], overrides: Sequence[str] = ()) -> Sweep:
    """Return the sweep as words change it. Raises ConfigError naming the word."""
    iterations, routings = _read_routing(words.get("ROUTING"))
    weights = _read_reconstruction(words["RECON"]) if "RECON" in words else None
    typed = _read_typed(words, overrides)
    for name, axis in (("ROUTING", iterations), ("RECON", weights)):
        if axis is not None and axis.key in [override.key for override in typed]:
            raise ConfigError(f"{name} and {axis.key} are one choice; keep one of them")
    if sweep.search is not None and (routings or any(name in words for name in OF_GRIDS)):
        raise ConfigError(
            f"{sweep.path.name} is a search: without a grid and a table it takes no "
            f"{', '.join(OF_GRIDS)} or routing variant as ROUTING"
        )
    if (text := words.get("ARMS")) is not None:
        sweep = _keep_arms(sweep, text)
    if (text := words.get("SEEDS")) is not None:
        sweep = replace(sweep, seeds=_read_seeds(text))
    sweep = _set_keys(sweep, typed)
    if routings:
        sweep = _set_routings(sweep, routings, with_own=iterations is not None)
    for name, axis in (("ROUTING", iterations), ("RECON", weights)):
        if axis is not None:
            sweep = _pin_axis(sweep, name, axis)
    for keys in _split(words.get("ZIP")):
        sweep = _couple_axes(sweep, keys)
    metric = words.get("METRIC", sweep.metric)
    if metric != sweep.metric:  # what was published is of the file's metric
        sweep = replace(sweep, metric=metric, published=Published())
    if (text := words.get("BASELINE")) is not None:
        sweep = _set_baseline(sweep, text)
    return replace(sweep, excluded=tuple(map(_read_excluded, _split(words.get("EXCLUDE")))))


def describe_words(
    sweep: Sweep, words: Mapping[str, str], overrides: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return what was typed that the file of a sweep does not say itself, sorted: `EPOCHS=1`.

    Each choice has one form, whichever of its spellings was typed. Where cells run and what they
    are stored in is left out.
    """
    texts = {}
    for name, value in words.items():
        if BY_NAME[name] in GRID:
            values = value.replace(" ", "").split(",") if name != "EXCLUDE" else value.split()
            texts[name] = (" " if name == "EXCLUDE" else ",").join(values)
    if "RECON" in texts:
        weights = _read_reconstruction(texts["RECON"]).values
        texts["RECON"] = ",".join(f"{weight:g}" for weight in weights)
    if "ARMS" in texts:
        texts["ARMS"] = ",".join(sorted({*texts["ARMS"].split(","), sweep.baseline} - {""}))
    said = {
        "ARMS": ",".join(sorted(arm.name for arm in sweep.arms)),
        "BASELINE": sweep.baseline,
        "METRIC": sweep.metric,
    }
    texts = {name: text for name, text in texts.items() if text != said.get(name)}
    seeds = _read_seeds(words["SEEDS"]) if "SEEDS" in words else sweep.seeds
    if sorted(seeds) == sorted(sweep.seeds):
        texts.pop("SEEDS", None)
    elif (ordered := sorted(seeds)) == list(range(len(seeds))):
        texts["SEEDS"] = str(len(seeds))
    else:
        texts["SEEDS"] = ",".join(map(str, ordered))
    for override in _read_typed(words, overrides):
        if not is_logistics(override.key) and override not in sweep.base:
            values = (render(override.key, value).partition("=")[2] for value in override.values)
            values = [re.sub(r"^'([0-9.]+)'$", r"\1", value) for value in values]
            word = BY_KEY.get(override.key)
            texts[word.name if word else override.key] = ",".join(values)
    return tuple(sorted(f"{name}={text}" for name, text in texts.items()))


def is_logistics(key: str) -> bool:
    """Return whether a key decides where or how a cell runs, and nothing that a table shows."""
    names = {*LOGISTICS, *LOGISTICS_INSIDE} - {*SHOWN}
    return any(f"{key}.".startswith(f"{name}.") for name in names)


def _read_typed(words: Mapping[str, str], overrides: Sequence[str]) -> list[Override]:
    """Return the keys that words set, each once. Raises ConfigError naming the word."""
    texts = [grammar.expand_word(n, value) for n, value in words.items() if BY_NAME[n].key]
    typed = [check_axis(text, grammar.parse(text)) for text in (*texts, *overrides)]
    keys = [override.key for override in typed]
    if "seed" in keys:
        raise ConfigError("seed is set by SEEDS: a count, or a list such as SEEDS=0,7")
    for override in typed:
        key, word = override.key, BY_KEY.get(override.key)
        if keys.count(key) > 1:
            also = f"{key} and {word.name} are one choice" if word else f"{key} is typed twice"
            raise ConfigError(f"{also}; keep one, a list of values is an axis")
        if len(override.values) > 1 and is_logistics(key):
            raise ConfigError(f"{key} is no axis, since it decides no number; type one value")
    return typed


def _set_keys(sweep: Sweep, typed: Sequence[Override]) -> Sweep:
    """Set typed keys: those of PARTS in the arms that route, or in all, every other in all arms."""
    sweep = sweep.move_to_arms({override.key for override in typed}.__contains__)
    parts = [override for override in typed if override.key.partition(".")[0] in PARTS]
    routed = {arm.name for arm in sweep.arms if _routes(sweep, arm)} if parts else set()
    for override in typed:
        is_part = override in parts and bool(routed)
        sweep = _set_override(sweep, override, lambda a, p=is_part: not p or a.name in routed)
    return sweep


def _routes(sweep: Sweep, arm: Arm) -> bool:
    return _read_own_routing(sweep, arm) is not None


def _read_own_routing(sweep: Sweep, arm: Arm) -> str | None:
    """Return the routing of an arm's first place; None where its network does not route."""
    files = compose.read_files((*sweep.base, *arm.fixed, *arm.space.first_place()))
    return files[ROUTING]["name"] if files["model"].get("routes") else None


def _set_routings(sweep: Sweep, names: Sequence[str], with_own: bool) -> Sweep:
    """Give an axis over routings to the arms that route. Raises ConfigError where none does."""
    sweep = sweep.move_to_arms(lambda key: key.partition(".")[0] == ROUTING)
    arms, added = [], Override(ROUTING, tuple(names))
    for arm in sweep.arms:
        own = _read_own_routing(sweep, arm)
        if own is not None:
            axes = {axis.key: axis.values for axis in arm.space.axes}
            first = axes.get(ROUTING, (own,)) if with_own else ()
            arm = arm.set_routings(tuple(dict.fromkeys((*first, *names))))
            added = next(axis for axis in arm.space.axes if axis.key == ROUTING)
        arms.append(arm)
    if tuple(arms) == sweep.arms:
        raise ConfigError(f"ROUTING={','.join(names)}: no arm of {sweep.path.name} routes")
    return _add_coordinate(replace(sweep, arms=tuple(arms)), added)


def _read_routing(text: str | None) -> tuple[Override | None, list[str]]:
    """Return the axis of iterations that is typed, and the names of routings."""
    words = [] if text is None else [word.strip() for word in text.split(",")]
    numbers = [word for word in words if re.fullmatch("[0-9]{1,18}", word)]
    names = [word for word in words if word not in numbers]
    known = grammar.list_options(ROUTING)
    for word in names:
        if word not in known:
            raise ConfigError(
                f"ROUTING={text}: {word!r} is neither a number of routing iterations (>= 1) nor a "
                f"routing variant ({', '.join(known)})"
            )
    check_axis(f"ROUTING={text}", Override(ROUTING, tuple(names)))
    if not numbers:
        return None, names
    return check_axis(f"ROUTING={text}", Override(ITERATIONS, tuple(map(int, numbers)))), names


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
    for name in sorted(names):
        _check_arm(sweep, f"ARMS={text}", name)
    arms = tuple(arm for arm in sweep.arms if arm.name in {*names, sweep.baseline})
    return replace(sweep, arms=arms)


def _check_arm(sweep: Sweep, where: str, name: str) -> None:
    known = [arm.name for arm in sweep.arms]
    if name not in known:
        raise ConfigError(f"{where}: {name!r} is no arm; have {', '.join(known)}")


def _set_baseline(sweep: Sweep, name: str) -> Sweep:
    """Return the sweep with differences to another arm; the file's baseline stays in the table."""
    _check_arm(sweep, f"BASELINE={name}", name)
    if any(arm.matched for arm in sweep.arms) and name != sweep.baseline:
        raise ConfigError(
            f"BASELINE={name}: arms of {sweep.path.name} stop where {sweep.baseline} is as good"
        )
    return replace(sweep, baseline=name)


def _pin_axis(sweep: Sweep, name: str, axis: Override) -> Sweep:
    """Replace an axis in the arms that have it. Raises ConfigError where none has."""
    if not any(axis.key in arm.space.keys for arm in sweep.arms):
        raise ConfigError(f"{name}: no arm of {sweep.path.name} has the axis {axis.key}")
    return _set_override(sweep, axis, lambda arm: axis.key in arm.space.keys)


def _set_override(sweep: Sweep, override: Override, is_chosen: Callable[[Arm], bool]) -> Sweep:
    """Set a key in some arms."""
    arms = [arm.set_override(override) if is_chosen(arm) else arm for arm in sweep.arms]
    return _add_coordinate(replace(sweep, arms=tuple(arms)), override)


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
    """Return the settings of a place, in which short names stand for their keys."""
    settings = []
    for word in text.split():
        name, _, value = word.partition("=")
        key = BY_NAME[name].key if name in BY_NAME else ""
        if name == "ROUTING":
            key = ITERATIONS if value.isdecimal() else ROUTING
        settings.append(f"{key}={value}" if key else word)
    return read_place(" ".join(settings))


def _couple_axes(sweep: Sweep, text: str) -> Sweep:
    """Make axes move together in the arms that have all of them."""
    names = [word.strip() for word in text.split(",")]
    keys = tuple(with_dots(BY_NAME[n].key or n if n in BY_NAME else n) for n in names)
    if len(set(keys)) < 2 or not all(keys):
        raise ConfigError(f"ZIP={text}: name two axes or more, such as ZIP=epochs,batch_size")
    arms = tuple(replace(arm, space=arm.space.couple_axes(keys)) for arm in sweep.arms)
    if arms == sweep.arms:
        raise ConfigError(f"ZIP={text}: no arm of {sweep.path.name} has all of these axes")
    return replace(sweep, arms=arms)


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
