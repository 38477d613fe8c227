"""Detection and selection of accelerators, with device files in a temporary folder."""

import os
import subprocess
import sys
from importlib import metadata

import pytest

import taetpu
from taetpu.core.accelerators import SINGLE_CHIP_ENVIRONMENT, default_to_cpu, find_accelerators, select_device
from taetpu.core.errors import UserError


@pytest.fixture
def dev(tmp_path):
    """`dev(*names)`: a folder with these device files, and some that are none."""

    def made(*names):
        for name in ("null", "vfio/vfio", "nvidiactl", "nvidia-uvm", *names):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).touch()
        return tmp_path

    return made


def test_files_are_counted_in_the_order_of_their_numbers(dev):
    here = dev(*(f"nvidia{number}" for number in range(11)))
    (found,) = find_accelerators(here)
    assert (found.kind, [file.name for file in found.files]) == ("NVIDIA GPU", [f"nvidia{n}" for n in range(11)])


@pytest.mark.parametrize(
    ("files", "kind"), [(["accel0"], "TPU"), (["vfio/0", "vfio/1"], "TPU"), (["kfd"], "AMD GPU"), ([], None)]
)
def test_the_kind_is_detected_from_device_files(dev, files, kind):
    assert [one.kind for one in find_accelerators(dev(*files))] == ([kind] if kind else [])


def test_selecting_a_gpu_hides_the_others(dev):
    environ = {}
    select_device("1", dev("nvidia0", "nvidia1"), environ)
    assert environ == {"CUDA_VISIBLE_DEVICES": "1"}


def test_the_index_counts_among_visible_devices(dev):
    environ = {"CUDA_VISIBLE_DEVICES": "2,3"}
    select_device("1", dev("nvidia0", "nvidia1", "nvidia2", "nvidia3"), environ)
    assert environ == {"CUDA_VISIBLE_DEVICES": "3"}


def test_selecting_a_tpu_chip_sets_single_chip_bounds(dev):
    environ = {}
    select_device("3", dev("accel0", "accel1", "accel2", "accel3"), environ)
    assert environ.pop("TPU_VISIBLE_CHIPS") == "3"
    assert environ == SINGLE_CHIP_ENVIRONMENT
    assert {environ[name] for name in ("TPU_CHIPS_PER_PROCESS_BOUNDS", "TPU_PROCESS_BOUNDS")} == {"1,1,1"}


@pytest.mark.parametrize(
    ("device", "files", "environ", "told"),
    [
        ("4", ["accel0", "accel1", "accel2", "accel3"], {}, "device 4: .* 4 TPUs"),
        ("1", ["nvidia0"], {}, "device 1: .* one NVIDIA GPU"),
        ("1", ["nvidia0", "nvidia1"], {"CUDA_VISIBLE_DEVICES": "1"}, "one NVIDIA GPU .limited by CUDA_VISIBLE_DEV"),
        ("0", [], {}, "device 0: .* no accelerator"),
        ("gpu", ["nvidia0"], {}, "or cpu, got gpu"),
        ("-1", ["nvidia0"], {}, "or cpu, got -1"),
        ("0", ["kfd"], {}, "cannot.* AMD GPU"),
    ],
)
def test_a_missing_device_is_rejected_and_the_environment_stays_unchanged(dev, device, files, environ, told):
    before = dict(environ)
    with pytest.raises(UserError, match=told) as error:
        select_device(device, dev(*files), environ)
    assert error.value.remedy
    assert environ == before


@pytest.mark.slow
def test_selecting_the_cpu_overrides_the_environment():
    """`cpu` holds although the environment asks for an accelerator: what is set comes before jax is imported."""
    choose = "from taetpu.core.accelerators import select_device; select_device('cpu')"
    code = f"{choose}\nimport jax; print(jax.devices()[0].platform)"
    environ = {"JAX_PLATFORMS": "tpu", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "cpu", done.stderr


@pytest.mark.parametrize(
    ("files", "environ", "platforms"),
    [
        ([], {}, "cpu"),
        (["accel0"], {}, None),
        (["nvidia0"], {}, None),
        (["kfd"], {}, None),
        (["dxg"], {}, None),
        ([], {"JAX_PLATFORMS": "tpu"}, "tpu"),
        ([], {"JAX_PLATFORMS": ""}, ""),
        ([], {"JAX_PLATFORM_NAME": "gpu"}, None),
    ],
)
def test_jax_defaults_to_the_cpu_without_accelerators(dev, monkeypatch, files, environ, platforms):
    monkeypatch.delitem(sys.modules, "jax", raising=False)
    default_to_cpu(dev(*files), environ)
    assert environ.get("JAX_PLATFORMS") == platforms


def python(code, **environ):
    """What a process of its own prints, with what it logs; it has no choice of a platform but one in `environ`."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
    own |= {"PYTHONPATH": ":".join(sys.path), **environ}
    done = subprocess.run([sys.executable, "-c", code], env=own, capture_output=True, text=True, check=True)
    return done.stdout.split(), done.stderr


@pytest.mark.slow
@pytest.mark.skipif(bool(find_accelerators()), reason="this machine has an accelerator, which jax is to find")
def test_importing_taetpu_keeps_libtpu_from_searching_for_a_tpu():
    assert python("import taetpu, jax; print(jax.devices()[0].platform)") == (["cpu"], "")


def test_dir_and_star_import_list_the_public_names():
    exported: dict[str, object] = {}
    exec("from taetpu import *", exported)
    assert exported.keys() - {"__builtins__"} == set(taetpu.__all__)
    assert set(taetpu.__all__) <= set(dir(taetpu))
    assert taetpu.load_study.__module__ == "taetpu.study.loading"


def test_the_version_is_that_of_the_installed_package():
    assert taetpu.__version__ == metadata.version("taetpu")
