"""Facts about chips: slice names in both notations, errors for wrong names, and agreement with libtpu."""

import json
import math
import re
import subprocess
import sys

import pytest

from taetpu.core.chips import find_chip, find_peak, generations, parse_slice, table_date
from taetpu.core.errors import UserError

WHAT_WE_ASK = [  # name, canonical, topology, chips, cores, devices, hosts
    ("v2-8", "v2-8", "v2:2x2", 4, 8, 8, 1),
    ("v3-8", "v3-8", "v3:2x2", 4, 8, 8, 1),
    ("v4-32", "v4-32", "v4:2x2x4", 16, 32, 16, 4),
    ("v5litepod-16", "v5litepod-16", "v5e:4x4", 16, 16, 16, 4),
    ("v5e-8", "v5litepod-8", "v5e:2x4", 8, 8, 8, 1),
    ("V5E:4x4", "v5litepod-16", "v5e:4x4", 16, 16, 16, 4),
    ("v5e:4x2", "v5litepod-8", "v5e:2x4", 8, 8, 8, 1),
    ("v4:4x2x2", "v4-32", "v4:2x2x4", 16, 32, 16, 4),
    ("v5p-64", "v5p-64", "v5p:2x4x4", 32, 64, 32, 8),
    ("v6e-8", "v6e-8", "v6e:2x4", 8, 8, 8, 1),
    ("tpu7x-8", "tpu7x-8", "tpu7x:2x2x1", 4, 8, 8, 1),
    ("tpu-v5litepod-8", "v5litepod-8", "v5e:2x4", 8, 8, 8, 1),  # as SkyPilot writes it
]


@pytest.mark.parametrize(("asked", "name", "topology", "chips", "cores", "devices", "hosts"), WHAT_WE_ASK)
def test_a_slice_name_determines_its_size(asked, name, topology, chips, cores, devices, hosts):
    found = parse_slice(asked)
    assert (found.name, found.topology_name) == (name, topology)
    assert (found.chips, found.cores, found.devices, found.hosts) == (chips, cores, devices, hosts)


def test_every_published_slice_is_found_by_both_of_its_names():
    for chip in generations():
        sizes = [math.prod(topology) for topology in chip.topologies]
        assert len(set(sizes)) == len(sizes), "a size names one shape"
        for one in chip.slices():
            assert parse_slice(one.name) == parse_slice(one.topology_name) == one
            assert one.hosts * one.chips_per_host == one.chips
            assert one.hbm_bytes == one.devices * one.hbm_bytes_per_device
            assert 0.9 < chip.program_gib * 2**30 / one.hbm_bytes_per_device < 1.01


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("v5e-5", r"chips.* nearest: v5e-4, v5e-8\."),
        ("v3-4", r"cores.* nearest: v3-8, v3-32\."),
        ("v6e-1000", "v6e-256"),
        ("v4:3x3x3", "nearest: v4:2x4x4, v4:2x2x4, v4:4x4x4."),
        ("v5f-8", "Did you mean 'v5p-8'"),
        ("v5e", "v5e-1, v5e-4, v5e-8"),
        ("v5e-eight", "v5e-1, v5e-4, v5e-8"),
        ("", "tpu7x-2, v2-8, v3-8, v4-8, v5litepod-1, v5p-8, v6e-1"),
    ],
)
def test_the_remedy_for_a_wrong_name_lists_the_nearest_names(name, remedy):
    with pytest.raises(UserError) as error:
        parse_slice(name)
    assert repr(name) in error.value.problem
    assert re.search(remedy, error.value.remedy or "")


def test_the_size_of_a_host_follows_from_its_chips_and_is_none_if_unknown():
    sizes = {name: parse_slice(name).host_size for name in ("v5e-4", "v5e-8", "v5e-16", "v3-8", "v3-32", "v2-8")}
    assert sizes == {
        "v5e-4": (112, 192), "v5e-8": (224, 384), "v5e-16": (112, 192), "v3-8": (96, 340), "v3-32": (48, 340),
        "v2-8": None,
    }  # fmt: skip
    for tpu in (tpu for chip in generations() for tpu in chip.slices()):
        assert (tpu.host_size is None) == (tpu.generation.name == "v2"), tpu.name


def test_the_price_covers_all_chips_and_is_none_if_unknown():
    assert parse_slice("v5e-8").usd_per_hour(spot=False) == pytest.approx(8 * 1.20)
    assert parse_slice("v5e-8").usd_per_hour(spot=True) == pytest.approx(8 * 0.2449)
    assert parse_slice("tpu7x-8").usd_per_hour(spot=False) is None


def test_every_figure_has_a_source_with_a_date_no_later_than_the_table():
    for chip in generations():
        sources = dict(chip.sources)
        for name in ("bf16_flops", "hbm_bytes", "hbm_bandwidth", "usd", "clock_hz", "topologies", "host_sizes"):
            known = bool(getattr(chip, name))
            assert (name in sources) == known, f"{chip.name}.{name}"
        assert all(source.title for source in sources.values())
        assert all(source.read <= table_date() if source.read else source.via for source in sources.values())


def test_a_published_clock_gives_the_published_rate():
    """Each matrix unit multiplies and adds once per cell and cycle."""
    for chip in generations():
        if chip.clock_hz:
            rate = 2 * chip.mxu_size**2 * chip.mxus_per_core * chip.cores_per_chip * chip.clock_hz
            assert rate == pytest.approx(chip.bf16_flops, rel=0.01), chip.name


@pytest.mark.slow
def test_the_table_agrees_with_jax_except_for_noted_figures():
    from jax._src.pallas.mosaic import tpu_info

    disagree = {
        ("v2", "hbm_bytes"),
        ("v3", "bf16_flops"),
        ("v3", "hbm_bandwidth"),
        ("v5p", "hbm_bandwidth"),
    }  # noted in the file
    for chip in generations():
        version = tpu_info.chip_version_from_device_kind(chip.device_kinds[0])
        assert isinstance(version, tpu_info.ChipVersion)
        info = tpu_info.get_tpu_info_for_chip(version, 1)
        assert version.num_physical_tensor_cores_per_chip == chip.cores_per_chip
        assert (info.mxu_column_size, info.num_mxus) == (chip.mxu_size, chip.mxus_per_core)
        theirs = {
            "bf16_flops": info.bf16_ops_per_second,
            "hbm_bytes": info.hbm_capacity_bytes,
            "hbm_bandwidth": info.mem_bw_bytes_per_second,
        }
        for name, value in theirs.items():
            agrees = value * chip.cores_per_chip == pytest.approx(getattr(chip, name), rel=0.03)
            assert agrees == ((chip.name, name) not in disagree), f"{chip.name}.{name}"


@pytest.mark.parametrize(
    ("kind", "name", "flops"),
    [
        ("NVIDIA H100 80GB HBM3", "H100", 989e12),
        ("NVIDIA H100 PCIe", "H100 PCIe", 756e12),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB", 312e12),
        ("NVIDIA L40S", "L40S", 362e12),
        ("Tesla T4", "T4", None),
        ("TPU v5 lite", "TPU v5e", 197e12),
        ("TPU v3", "TPU v3", 123e12 / 2),  # a device is half a chip
    ],
)
def test_peak_is_found_by_device_kind(kind, name, flops):
    found = find_peak(kind)
    assert found is not None
    assert (found.name, found.bf16_flops) == (name, flops)
    assert found.source.title


def test_unlisted_devices_have_no_peak():
    for kind in ("cpu", "NVIDIA A10G", "NVIDIA GH200 480GB", "NVIDIA H100 NVL", "TPU v99", ""):
        assert find_peak(kind) is None, kind
    assert find_chip("NVIDIA H100 PCIe") is None


ASK_LIBTPU = """
import json, sys
import re
import jax
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding
said = {}
for name, options in json.load(sys.stdin):
    devices = topologies.get_topology_desc(platform="tpu", topology_name=name, **options).devices
    said[name] = [len(devices), len({one.process_index for one in devices}), devices[0].device_kind]
where = SingleDeviceSharding(devices[0])
huge = jax.ShapeDtypeStruct((250_000, 250_000), "float32")
try:
    jax.jit(lambda x: 2 * x, in_shardings=where, out_shardings=where).lower(huge).compile()
except jax.errors.JaxRuntimeError as error:
    print(json.dumps([said, float(re.search(r"available HBM \\(([0-9.]+)G\\)", str(error))[1])]))
"""
SILENT = {"TPU_SKIP_MDS_QUERY": "1", "JAX_PLATFORMS": "cpu", "TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"}


@pytest.mark.parametrize(
    "chip",
    [
        pytest.param(one, marks=pytest.mark.slow if one.name in ("v3", "v5e") else pytest.mark.nightly)
        for one in generations()
    ],
    ids=lambda chip: chip.name,
)
def test_libtpu_agrees_on_every_slice_up_to_256_chips(chip, monkeypatch):
    pytest.importorskip("libtpu")
    for key, value in (SILENT | {"ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}).items():
        monkeypatch.setenv(key, value)
    slices = [one for one in chip.slices() if one.chips <= 256]
    asked = json.dumps([[one.topology_name, one.topology_options] for one in slices])
    command = [sys.executable, "-c", ASK_LIBTPU]
    done = subprocess.run(command, input=asked, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    said, gib = json.loads(done.stdout)
    assert gib == chip.program_gib
    assert said == {one.topology_name: [one.devices, one.hosts, chip.device_kinds[0]] for one in slices}
