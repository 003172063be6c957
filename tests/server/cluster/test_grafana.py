"""The dashboard: what it asks for is what a server publishes, and Grafana can draw it (its classic JSON model)."""

from __future__ import annotations

import json
import re
from itertools import combinations
from typing import Any

import prometheus_client.parser
import pytest
from helpers.http_harness import Served
from helpers.paths import ROOT

SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
COLUMNS = 24
# Selectors, ranges, grouping labels and texts.
NO_NAMES = r"\{[^}]*\}|\[[^\]]*\]|\b(by|without|on|ignoring) *\([^)]*\)|\"[^\"]*\""
FUNCTIONS = r"\b\w+ *(?=\()"


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "server" / "cluster" / "grafana.json").read_text())
    return found


def published(text: str) -> set[str]:
    """The names of all series that a page of metrics can have, also of those without a sample yet."""
    families = prometheus_client.parser.text_string_to_metric_families(text)
    return {family.name + suffix for family in families for suffix in SUFFIXES.get(family.type, ("",))}


def names_in(expression: str) -> set[str]:
    """The names of series in an expression of PromQL."""
    return set(re.findall(r"[a-zA-Z_:][\w:]*", re.sub(FUNCTIONS, " ", re.sub(NO_NAMES, " ", expression))))


def test_every_series_is_one_that_a_server_publishes(dashboard: dict[str, Any], served: Served) -> None:
    known = published(served.get("/metrics").text)
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked = set[str]().union(*map(names_in, expressions))
    assert asked <= known, asked - known
    assert all('replica=~"$replica"' in expression for expression in expressions)
    variables = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
    assert re.findall(r"label_values\((\w+), replica\)", variables["replica"]["definition"])[0] in known


def test_it_is_found_by_its_uid_and_its_data_source_is_chosen(dashboard: dict[str, Any]) -> None:
    assert {"uid", "title", "time", "refresh", "schemaVersion", "annotations", "tags"} <= dashboard.keys()
    assert re.fullmatch(r"[\w-]{1,40}", dashboard["uid"])
    assert "id" not in dashboard  # Grafana's own number
    variables = {variable["name"]: variable["type"] for variable in dashboard["templating"]["list"]}
    assert variables == {"datasource": "datasource", "replica": "query"}
    for panel in dashboard["panels"]:
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_panels_have_ids_and_places_of_their_own(dashboard: dict[str, Any]) -> None:
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    for panel in panels:
        assert {"type", "title", "description", "gridPos", "fieldConfig", "options", "targets"} <= panel.keys()
        assert panel["type"] in ("stat", "timeseries")
        place = panel["gridPos"]
        assert place["w"] > 0
        assert place["h"] > 0
        assert 0 <= place["x"] <= COLUMNS - place["w"]
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs) > 0
    assert not [pair for pair in combinations(panels, 2) if overlap(*(panel["gridPos"] for panel in pair))]


def overlap(one: dict[str, int], two: dict[str, int]) -> bool:
    """Whether two places share a cell of the grid."""
    return all(one[at] < two[at] + two[size] and two[at] < one[at] + one[size] for at, size in (("x", "w"), ("y", "h")))
