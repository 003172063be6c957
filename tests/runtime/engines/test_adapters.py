"""The catalog of adapters: which of them a generation may use."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.base.errors import RequestError
from runtime.engines.adapters import Adapter, AdapterCatalog

FACTORS = np.zeros((12, 8), np.float32)
MANY = {name: Adapter(name, FACTORS, FACTORS) for name in ("soft", "hard")}


def test_adapters_of_strength_0_are_not_used() -> None:
    (use,) = AdapterCatalog(MANY, 16).uses({"soft": 0.7, "hard": 0.0})
    assert (use.adapter.id, use.strength) == ("soft", 0.7)


def test_unknown_adapters_are_refused() -> None:
    with pytest.raises(RequestError, match=r"(?s)no adapter 'sofd'.*did you mean soft"):
        AdapterCatalog(MANY, 0).find({"sofd": 1.0})
    with pytest.raises(RequestError, match="this server has none"):
        AdapterCatalog({}, 0).find({"soft": 1.0})


def test_ranks_that_do_not_fit_are_refused() -> None:
    with pytest.raises(RequestError, match=r"24 in sum.*takes 16"):
        AdapterCatalog(MANY, 16).uses({"soft": 1.0, "hard": 1.0})
    with pytest.raises(RequestError, match="without adapters"):
        AdapterCatalog(MANY, 0).uses({"soft": 1.0})
    assert len(AdapterCatalog(MANY, 0).find({"soft": 1.0, "hard": 1.0})) == 2
