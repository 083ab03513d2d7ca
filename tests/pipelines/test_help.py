"""--help has a text for every key of every command."""

import inspect
from dataclasses import fields
from typing import Any, get_type_hints

import pytest
from docstring_parser import parse_from_object

from dataprep.convert import ExportConfig, ImportConfig
from dataprep.corpus import BuildConfig
from pipelines.common import sections
from pipelines.plan import PlanConfig
from training import TrainConfig


def texts(kind: Any) -> dict[str, str | None]:
    """What jsonargparse shows of each field: the string below it, in its class or one above."""
    found = {}
    for one in reversed(inspect.getmro(kind)[:-1]):
        found |= {p.arg_name: p.description for p in parse_from_object(one).params}
    return found


@pytest.mark.parametrize(
    "config", [BuildConfig, ImportConfig, ExportConfig, TrainConfig, PlanConfig]
)
def test_every_key_has_a_text(config: Any) -> None:
    """Its own; a section, that of its class."""
    kinds, silent = [config], []
    for kind in kinds:  # which grows
        hints, told = get_type_hints(kind), texts(kind)
        for key in fields(kind):
            inner = [section for section, _ in sections(hints[key.name])]
            kinds += [section for section in inner if section not in kinds]
            if not told.get(key.name) and not any(section.__doc__ for section in inner):
                silent.append(f"{kind.__name__}.{key.name}")
    assert not silent
