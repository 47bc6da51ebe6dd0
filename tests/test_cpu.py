"""What the CPU says of itself is read where it stands, and elsewhere asked of the platform."""

from __future__ import annotations

import platform

import pytest

from drafterzoo import cpu

INTEL = "vendor_id\t: GenuineIntel\nmodel name\t: Some Xeon @ 2 GHz\n\nvendor_id\t: Other\n"


@pytest.mark.parametrize(
    ("text", "processor", "vendor", "model"),
    [
        (INTEL, "x86_64", "GenuineIntel", "Some Xeon @ 2 GHz"),
        ("processor\t: 0\nBogoMIPS\t: 50.00\n", "aarch64", "", "aarch64"),
        (None, "Intel64 Family 6 Model 85 Stepping 4, GenuineIntel", "GenuineIntel", "Intel64 Family 6"),
        (None, "", "", "arm64"),
    ],
)
def test_maker_and_model(monkeypatch, tmp_path, text, processor, vendor, model):
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)
    monkeypatch.setattr(cpu, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(platform, "processor", lambda: processor)
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    assert cpu.cpu_vendor() == vendor
    assert cpu.cpu_model().startswith(model)
