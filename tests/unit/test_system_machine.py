"""What a machine uses: its memory or that of the control group, its load, its disk."""

from pathlib import Path

import pytest

from oah.adapters.system.machine import MachineGauge

GIB = 1 << 30


def group(directory: Path, *, limit: str, used: int, cached: int, version: int) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    (directory / names[0]).write_text(f"{limit}\n")
    (directory / names[1]).write_text(f"{used}\n")
    word = "inactive_file" if version == 2 else "total_inactive_file"
    (directory / "memory.stat").write_text(f"anon 1\n{word} {cached}\n")


def gauge(tmp_path: Path, line: str) -> MachineGauge:
    (tmp_path / "own").write_text(line)
    return MachineGauge(tmp_path, groups=tmp_path / "groups", membership=tmp_path / "own")


def test_the_machine_itself(tmp_path: Path) -> None:
    usage = gauge(tmp_path, "").read()
    assert usage.memory is not None and 0 < usage.memory < 1
    assert usage.disk is not None and 0 <= usage.disk <= 1
    assert usage.load is not None and usage.load >= 0


def test_a_directory_that_does_not_exist_yet_is_measured_where_it_will_be(tmp_path: Path) -> None:
    there = MachineGauge(tmp_path).read()
    assert MachineGauge(tmp_path / "later" / "data").read().disk == pytest.approx(there.disk, abs=0.01)


@pytest.mark.parametrize(
    ("version", "top", "line"), [(2, "groups", "0::/a/b\n"), (1, "groups/memory", "3:cpu:/\n4:memory:/a/b\n0::/\n")]
)
def test_a_full_group_counts_without_the_files_it_has_read(tmp_path: Path, version: int, top: str, line: str) -> None:
    own = tmp_path / top / "a" / "b"
    group(own, limit=str(4 * GIB), used=int(4.4 * GIB), cached=int(0.4 * GIB), version=version)
    assert gauge(tmp_path, line).read().memory == pytest.approx(1.0, abs=0.01)


def test_a_group_around_the_own_one_may_be_the_fuller(tmp_path: Path) -> None:
    group(tmp_path / "groups" / "a" / "b", limit="max", used=GIB, cached=0, version=2)
    group(tmp_path / "groups" / "a", limit=str(GIB), used=GIB * 99 // 100, cached=0, version=2)
    assert gauge(tmp_path, "0::/a/b\n").read().memory == pytest.approx(0.99, abs=0.01)


def test_in_a_container_the_own_group_is_the_top(tmp_path: Path) -> None:
    group(tmp_path / "groups", limit=str(GIB), used=GIB * 98 // 100, cached=0, version=2)
    assert gauge(tmp_path, "0::/elsewhere/on/the/host\n").read().memory == pytest.approx(0.98, abs=0.01)


def test_a_group_that_is_slowed_down_is_full_before_its_limit(tmp_path: Path) -> None:
    own = tmp_path / "groups" / "a"
    group(own, limit=str(GIB), used=GIB * 3 // 4, cached=0, version=2)
    (own / "memory.high").write_text(f"{GIB * 8 // 10}\n")
    assert gauge(tmp_path, "0::/a\n").read().memory == pytest.approx(0.9375, abs=0.001)


def test_what_cannot_be_read_is_no_figure(tmp_path: Path) -> None:
    own = tmp_path / "groups" / "a"
    group(own, limit=str(GIB), used=GIB // 2, cached=0, version=2)
    measured = gauge(tmp_path, "0::/a\n")
    (own / "memory.current").write_text("nonsense\n")
    machine = gauge(tmp_path, "").read().memory
    assert measured.read().memory == pytest.approx(machine, abs=0.02), "what the machine says still counts"
    (own / "memory.current").write_text(f"{GIB // 2}\n")
    (own / "memory.max").write_text(f"{GIB * 51 // 100}\n")
    assert measured.read().memory == pytest.approx(0.98, abs=0.01), "the limit was changed meanwhile"
    assert measured.read().disk is not None
