"""Number of threads: the physical cores that this process may use."""

import os

import pytest

from quire.machine import cores
from quire.machine.cores import cpu_quota, physical_cores, usable_cores, usable_cpus


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def hyperthreads(tmp_path):
    """Four cores of two threads: CPU 0 and 4 are one core, and so on."""
    for cpu in range(8):
        text = f"{cpu % 4},{cpu % 4 + 4}\n"
        write(tmp_path / f"cpu{cpu}" / "topology" / "thread_siblings_list", text)
    return tmp_path


@pytest.mark.parametrize(
    ("cpus", "count"), [(range(8), 4), ([0, 4], 1), ([0, 1], 2), ([1, 4, 5], 2), ([7], 1)], ids=str
)
def test_two_threads_of_a_core_are_one(hyperthreads, cpus, count):
    assert physical_cores(cpus, hyperthreads) == count


def test_without_siblings_each_cpu_is_a_core(tmp_path):
    assert physical_cores(range(3), tmp_path) == 3


@pytest.mark.parametrize(
    ("own", "files", "quota"),
    [
        ("0::/\n", {"cpu.max": "150000 100000"}, 1.5),
        ("0::/\n", {"cpu.max": "max 100000"}, None),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "200000 100000"}, 2.0),
        ("0::/a/b\n", {"a/b/cpu.max": "400000 100000", "a/cpu.max": "200000 100000"}, 2.0),
        ("0::/elsewhere\n", {"cpu.max": "100000 100000"}, 1.0),
        ("4:cpu,cpuacct:/a\n2:memory:/a\n",
         {"cpu,cpuacct/a/cpu.cfs_quota_us": "50000",
          "cpu,cpuacct/a/cpu.cfs_period_us": "100000"}, 0.5),
        ("4:cpu,cpuacct:/a\n",
         {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ("2:memory:/a\n", {"cpu.max": "100000 100000"}, None),
        ("4:cpuset,cpuacct:/a\n",
         {"cpuset,cpuacct/a/cpu.cfs_quota_us": "50000",
          "cpuset,cpuacct/a/cpu.cfs_period_us": "100000"}, None),
        ("", {}, None),
    ],
    ids=["one", "none", "above", "smallest", "no namespace", "version 1", "version 1 without",
         "another controller", "controllers named alike", "nothing"],
)  # fmt: skip
def test_a_quota_is_the_smallest_of_the_groups_above(tmp_path, own, files, quota):
    write(tmp_path / "own", own)
    for name, text in files.items():
        write(tmp_path / "groups" / name, text)
    assert cpu_quota(tmp_path / "groups", tmp_path / "own") == quota


def test_without_control_groups_there_is_no_quota(tmp_path):
    assert cpu_quota(tmp_path, tmp_path / "none") is None


@pytest.mark.parametrize(
    ("quota", "count", "why"),
    [
        (None, 4, "physical core"),
        (2.5, 3, "quota of 2.5"),
        (3.5, 4, "physical core"),
        (0.1, 1, "quota of 0.1"),
        (16.0, 4, "physical"),
    ],
)
def test_a_quota_lowers_the_number_of_threads(monkeypatch, hyperthreads, quota, count, why):
    monkeypatch.setattr(cores, "CPUS", hyperthreads)
    monkeypatch.setattr(cores, "_allowed_cpus", lambda: set(range(8)))
    monkeypatch.setattr(cores, "cpu_quota", lambda: quota)
    number, reason = usable_cores()
    assert number == count
    assert why in reason


def test_the_affinity_of_the_process_counts():
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert usable_cpus() == usable_cores()[0] == 1
    finally:
        os.sched_setaffinity(0, before)
