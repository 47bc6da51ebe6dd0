"""What the CPU says of itself: its model and its maker. Knows /proc/cpuinfo, and `platform` where there is none."""

from __future__ import annotations

import platform
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


def cpu_model() -> str:
    """The model as people name it, or the architecture where nothing says more."""
    return _field("model name") or platform.processor() or platform.machine()


def cpu_vendor() -> str:
    """What the CPU calls its maker ("GenuineIntel", "AuthenticAMD"); "" where nothing says it."""
    known = ("GenuineIntel", "AuthenticAMD")
    return _field("vendor_id") or next((name for name in known if name in platform.processor()), "")


def _field(key: str) -> str:
    try:
        lines = CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""  # not Linux
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")
