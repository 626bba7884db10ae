"""Whatever way a value is drawn from others in conf/, an override of those reaches it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from laws import at_most_examples
from omegaconf import DictConfig, OmegaConf

from capsweep.config import compose, schema
from capsweep.config import overrides as grammar
from capsweep.config.references import references
from capsweep.config.template import Template
from capsweep.errors import ConfigError

# Every kind of reference, by the names of the keys of `drawn`.
WRITTEN: dict[str, Any] = {
    "size": 3,
    "which": "left",
    "numbers": [4, 5],
    "left": {"depth": 6, "width": 7},
    "right": {"depth": 8, "width": 9},
    "tables": [{"rows": 10}, {"rows": 11}],
    "plain": {"untouched": 1, "listed": [2]},
    "drawn": {
        "absolute": "${left.depth}",
        "spaced": "${ left.width }",
        "in_text": "at ${size} of ${which}",
        "select": "${oc.select:size}",
        "select_default": "${oc.select:no.such.key,12}",
        "select_quoted": "${oc.select:'right.depth', 1}",
        "select_drawn_default": "${oc.select:nothing,${right.width}}",
        "select_relative": "${oc.select:..left.depth}",
        "sibling": "${.absolute}",
        "around": "${..right.depth}",
        "bracketed": "${left[width]}",
        "of_a_list": "${numbers[1]}",
        "of_a_list_dotted": "${numbers.0}",
        "a_whole_list": "${numbers}",
        "into_a_list": [1, "${size}", "${.0}"],
        "of_a_section_in_a_list": "${tables[1].rows}",
        "a_key_within_a_key": "${${which}.depth}",
        "through_a_copy": "${section.width}",
        "through_a_copy_of_a_copy": "${again.deeper.depth}",
    },
    "places": {"environment": "${oc.env:NO_SUCH_NAME,${size}}"},  # no other section may ask it
    "section": "${left}",
    "around": {"deeper": "${right}", "own": 13},
    "again": "${around}",
    "selected": "${oc.select:left}",
    "relative": {"section": "${..right}"},
    "in_a_list": ["${left}", {"inner": "${right}"}],
}
VALUES = {
    **dict.fromkeys(
        ["size", "left.depth", "left.width", "right.depth", "around.own"], st.integers(20, 29)
    ),
    **dict.fromkeys(["plain.untouched", "drawn.select", "drawn.sibling"], st.integers(20, 29)),
    "right.width": st.sampled_from([20, "${size}", "${..size}", "${oc.select:left.width}"]),
    "which": st.sampled_from(["left", "right"]),
    "numbers": st.sampled_from([[20, 21], ["${size}", 22]]),
    "plain.listed": st.sampled_from([[20], []]),
}


def slowly(values: dict[str, Any]) -> DictConfig:
    """OmegaConf's own answer, before it is resolved."""
    config = OmegaConf.create(WRITTEN)
    for key, value in values.items():
        OmegaConf.update(config, key, value)
    return config


def template_of(values: dict[str, Any]) -> Template:
    """The template after some values were set on the slow road."""
    config = slowly(values)
    plain = OmegaConf.to_container(config, resolve=True)
    return Template(config, plain, frozenset(schema.leaves(plain)))


def quickly(values: dict[str, Any]) -> Any:
    """The same by templates: what can be set on a plain copy is."""
    quick, template = dict(values), template_of({})
    while refused := [k for k, v in quick.items() if not template.can_set(one(k, v))]:
        quick = {key: value for key, value in quick.items() if key not in refused}
        template = template_of({key: value for key, value in values.items() if key not in quick})
    return template.filled(list(quick.items()))


def one(key: str, value: Any) -> grammar.Override:
    return grammar.Override(key, (value,))


@given(data=st.data())
@at_most_examples(100)
def test_every_kind_of_reference_follows_what_it_names(data: st.DataObject) -> None:
    keys = data.draw(st.lists(st.sampled_from(sorted(VALUES)), unique=True, max_size=3))
    values = {key: data.draw(VALUES[key]) for key in keys}
    assert quickly(values) == OmegaConf.to_container(slowly(values), resolve=True)


@pytest.mark.parametrize("key", sorted(VALUES.keys() - {"plain.untouched", "plain.listed"}))
def test_a_key_that_a_value_is_drawn_from_is_tied(key: str) -> None:
    assert not template_of({}).can_set(one(key, 20))


@pytest.mark.parametrize("key", ["plain.untouched", "plain.listed"])
def test_other_keys_are_not(key: str) -> None:
    assert template_of({}).can_set(one(key, 20))


def test_a_section_drawn_whole_leaves_the_keys_of_its_source_free() -> None:
    config = OmegaConf.create({"a": {"b": 1}, "c": {"d": "${..a}"}})
    template = Template(config, {"a": {"b": 1}, "c": {"d": {"b": 1}}}, frozenset({"a.b", "c.d.b"}))
    assert template.can_set(one("a.b", 2))
    assert template.filled([("a.b", 2)]) == {"a": {"b": 2}, "c": {"d": {"b": 2}}}
    assert not template.can_set(one("c.d.b", 2))


@pytest.mark.parametrize("text", ["${oc.dict.values:left}", "${oc.decode:'${size}'}", "${now:%Y}"])
def test_with_a_resolver_that_may_read_anything_every_key_is_tied(text: str) -> None:
    config = OmegaConf.create({"a": text, "b": 1})
    assert references(config, "a", text) is None
    template = Template(config, {"a": 1, "b": 1}, frozenset({"a", "b"}))
    assert not template.can_set(one("b", 2))


# What stands at a key of conf/optim/adam.yaml, an override, and what is there then.
REWRITTEN = {
    "${oc.select:epochs,7}": ("steps: 2000", "epochs=3", 3),
    "${...epochs}": ("steps: 2000", "epochs=3", 3),
    "${.steps}": ("warmup: 0", "optim.schedule.steps=5", 5),
    "${optim[schedule].steps}": ("warmup: 0", "optim.schedule.steps=5", 5),
    "${model.image_shape[1]}": ("steps: 2000", "dataset.image_shape=[1,30,30]", 30),
    "${model.routing.num_iters}": ("steps: 2000", "routing.num_iters=4", 4),
}


@pytest.mark.parametrize("text", REWRITTEN)
def test_in_a_file_of_conf_too(text: str, conf_tree: Callable[[], Path]) -> None:
    file = conf_tree() / "optim" / "adam.yaml"
    line, override, drawn = REWRITTEN[text]
    key = line.split(":")[0]
    file.write_text(file.read_text().replace(line, f'{key}: "{text}"'))
    compose.cell([])
    assert compose.cell([override]).config["optim"]["schedule"][key] == drawn


def test_a_key_of_a_wired_section_names_where_it_is_set(conf_tree: Callable[[], Path]) -> None:
    file = conf_tree() / "model" / "capsnet_small.yaml"
    file.write_text(file.read_text().replace("${routing}", "${..routing}"))
    with pytest.raises(ConfigError, match=r"wired to routing\.num_iters; set routing\.num_iters$"):
        compose.cell(["model.routing.num_iters=1"])


@pytest.mark.parametrize("text", ["${routing}", "${.routing}", "${oc.select:routing}"])
def test_a_value_drawn_from_a_section_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^limit_batches"):
        compose.cell([f"limit_batches={text}"])
