"""Which accelerators a machine has, and how one is chosen: device files stand in a folder of the test's."""

import os
import subprocess
import sys

import pytest

import taetpu
from taetpu.core.devices import SINGLE_CHIP_ENVIRONMENT, default_to_cpu, find_accelerators, select_device
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
def test_each_kind_is_told_by_its_files(dev, files, kind):
    assert [one.kind for one in find_accelerators(dev(*files))] == ([kind] if kind else [])


def test_one_gpu_is_all_that_a_process_sees(dev):
    environ = {}
    select_device("1", dev("nvidia0", "nvidia1"), environ)
    assert environ == {"CUDA_VISIBLE_DEVICES": "1"}


def test_a_number_counts_among_what_a_scheduler_gave(dev):
    environ = {"CUDA_VISIBLE_DEVICES": "2,3"}
    select_device("1", dev("nvidia0", "nvidia1", "nvidia2", "nvidia3"), environ)
    assert environ == {"CUDA_VISIBLE_DEVICES": "3"}


def test_one_chip_does_not_wait_for_the_others(dev):
    environ = {}
    select_device("3", dev("accel0", "accel1", "accel2", "accel3"), environ)
    assert environ.pop("TPU_VISIBLE_CHIPS") == "3"
    assert environ == SINGLE_CHIP_ENVIRONMENT
    assert {environ[name] for name in ("TPU_CHIPS_PER_PROCESS_BOUNDS", "TPU_PROCESS_BOUNDS")} == {"1,1,1"}


@pytest.mark.parametrize(
    ("device", "files", "environ", "told"),
    [
        ("4", ["accel0", "accel1", "accel2", "accel3"], {}, "there is no device 4: this machine has 4 TPUs"),
        ("1", ["nvidia0"], {}, "there is no device 1: this machine has one NVIDIA GPU"),
        ("1", ["nvidia0", "nvidia1"], {"CUDA_VISIBLE_DEVICES": "1"}, "one NVIDIA GPU (limited by CUDA_VISIBLE_DEV"),
        ("0", [], {}, "there is no device 0: this machine has no accelerator"),
        ("gpu", ["nvidia0"], {}, "a number or cpu, got gpu"),
        ("-1", ["nvidia0"], {}, "a number or cpu, got -1"),
        ("0", ["kfd"], {}, "cannot select an AMD GPU"),
    ],
)
def test_a_device_that_is_not_there_is_refused_and_nothing_is_set(dev, device, files, environ, told):
    before = dict(environ)
    with pytest.raises(UserError, match=r".") as error:
        select_device(device, dev(*files), environ)
    assert told in error.value.problem
    assert error.value.remedy
    assert environ == before


@pytest.mark.slow
def test_jax_sees_what_was_chosen():
    """`cpu` holds although the environment asks for an accelerator: what is set comes before jax is imported."""
    choose = "from taetpu.core.devices import select_device; select_device('cpu')"
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
def test_without_an_accelerator_and_a_choice_jax_starts_on_the_cpu(dev, monkeypatch, files, environ, platforms):
    monkeypatch.delitem(sys.modules, "jax", raising=False)
    default_to_cpu(dev(*files), environ)
    assert environ.get("JAX_PLATFORMS") == platforms


def python(code, **environ):
    """What a process of its own prints, with what it logs; it has no choice of a platform but one in `environ`."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_"))}
    own |= {"PYTHONPATH": ":".join(sys.path), **environ}
    done = subprocess.run([sys.executable, "-c", code], env=own, capture_output=True, text=True, check=True)
    return done.stdout.split(), done.stderr


@pytest.mark.skipif(bool(find_accelerators()), reason="this machine has an accelerator, which jax is to find")
def test_importing_taetpu_keeps_libtpu_from_searching_for_a_tpu():
    assert python("import taetpu, jax; print(jax.devices()[0].platform)") == (["cpu"], "")
    code = "import os, {}; print(os.environ.get('JAX_PLATFORMS'))"
    assert python(code.format("taetpu"), JAX_PLATFORMS="tpu,cpu")[0] == ["tpu,cpu"]
    assert python(code.format("jax, taetpu"))[0] == ["None"], "jax has read its settings by then"


def test_the_package_lists_what_it_offers():
    code = "import taetpu; print(*dir(taetpu))"
    listed = {name for name in python(code)[0] if not name.startswith("__")}
    assert listed == {*taetpu.__all__, "core"}
    assert set(taetpu.__all__) == {name for names in taetpu._HOMES.values() for name in names}
    code = "from taetpu import *; print(*(name for name in dir() if not name.startswith('__')))"
    assert set(python(code)[0]) == set(taetpu.__all__)
    assert python("import taetpu; print(taetpu.load_study.__module__)")[0] == ["taetpu.spec.loading"]
