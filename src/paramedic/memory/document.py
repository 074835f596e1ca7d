"""An estimate as JSON; `memory.schema.json` describes it."""

from __future__ import annotations

from typing import Any

from paramedic import __version__
from paramedic.memory.cards import Range
from paramedic.memory.estimate import SCHEMA_VERSION, Estimate


def document(made: Estimate) -> dict[str, Any]:
    result = made.result
    return {
        "schema_version": SCHEMA_VERSION,
        "tool": {"name": "paramedic", "version": __version__},
        "request": {key: value for key, value in made.request.to_dict().items() if key != "layers"},
        "gpu": {"name": made.card.name, "memory_bytes": made.card.memory},
        "model": {"parameters": result["parameters"]},
        "peak_allocated_bytes": _range(made.allocated),
        "peak_reserved_bytes": _range(made.reserved),
        "device_total_bytes": _range(made.total),
        "terms": [
            {"name": "peak allocated", **_range(made.allocated)},
            {"name": "segments beyond it", **_range(_difference(made))},
            *({"name": term.name, **_range(term.size)} for term in made.terms),
        ],
        "fits": made.fits,
        "first_step": {f"peak_{name}_bytes": value for name, value in result["first_step"].items()},
        "peak": {"at": result["at"], "owners": result["owners"]},
        "breakdown": breakdown(made),
        "ranks": made.ranks,
        "timeline": result["series"],
        "method": {
            "way": result["way"],
            "torch": result["torch"],
            "transformers": result["transformers"],
            "coarse_because": made.why_coarse or None,
            "seconds": result["seconds"],
            "events": result["events"],
        },
        "notes": result["notes"],
    }


def breakdown(made: Estimate) -> dict[str, int]:
    """At the peak; fragmentation is what the allocator holds beyond it, outside is not torch's."""
    sizes = dict(made.result["breakdown"])
    rounding = sizes.pop("rounding")
    sizes["fragmentation"] = max(made.reserved.mid - made.allocated.mid, 0) + rounding
    sizes["outside"] = made.total.mid - made.reserved.mid
    return sizes


def _difference(made: Estimate) -> Range:
    one, other = made.reserved, made.allocated
    mid = max(one.mid - other.mid, 0)
    return Range(
        max(one.low - other.high, 0), mid, max(one.high - other.low, mid), "allocator: segments and their rests"
    )


def _range(size: Range) -> dict[str, Any]:
    return {"low": size.low, "mid": size.mid, "high": size.high, "source": size.source}
