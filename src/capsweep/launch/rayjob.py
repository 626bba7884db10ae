"""What a RayJob (ray.io/v1) of ours may hold: our own schema of the fields that are used, where any
other key is an error, since Kubernetes drops what it does not know without a word."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator

from capsweep.errors import ConfigError

SCHEMA = Path(__file__).with_name("rayjob_schema.json")


@cache
def validator() -> Draft202012Validator:
    """Made once. Raises where the schema itself is wrong."""
    schema = json.loads(SCHEMA.read_text())
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def check(text: str) -> None:
    """Raise ConfigError naming the first field that a RayJob does not have, or not so."""
    value: Any = yaml.safe_load(text)
    for error in sorted(validator().iter_errors(value), key=lambda error: error.json_path):
        raise ConfigError(
            f"cluster=kuberay: {error.json_path.removeprefix('$.')}: {error.message}; correct the "
            "key of conf/cluster/kuberay.yaml that it is made of"
        )
