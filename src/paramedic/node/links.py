"""What is between nodes, as far as the kernel shows it: RDMA ports. Addresses and routes are `net`'s."""

from __future__ import annotations

import os

from paramedic.node.rows import Rows, folder, text_of

_ROOT = "/sys/class/infiniband"


def look(rows: Rows) -> None:
    for device in folder(_ROOT):
        for port in folder(os.path.join(_ROOT, device, "ports")):
            place = os.path.join(_ROOT, device, "ports", port)
            name = f"rdma {device}:{port}"
            for key in ("state", "phys_state", "rate", "link_layer"):
                rows.add(f"{name} {key}", text_of(os.path.join(place, key)).strip() or None, place)
            for counter in ("link_downed", "symbol_error", "link_error_recovery"):
                text = text_of(os.path.join(place, "counters", counter)).strip()
                rows.add(f"{name} {counter}", int(text) if text.isdigit() else None, place)
