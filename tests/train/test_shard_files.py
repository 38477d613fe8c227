"""Shards written under one division of arrays are read back under another."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from taetpu.store.digests import Damaged
from taetpu.train.shard_files import local_bytes, place, read_shards, regions_of, write_shards

SPECS = {"rows": P("d"), "columns": P(None, "d"), "whole": P()}


def arrays(spec: P) -> dict[str, jax.Array]:
    """A matrix divided as `spec` says, another dtype, and a scalar."""
    mesh = Mesh(jax.devices()[:2], ("d",))
    matrix = np.arange(24, dtype=np.float32).reshape(4, 6)
    values = {"matrix": (matrix, spec), "half": (matrix.astype(jnp.bfloat16), spec), "step": (np.int32(7), P())}
    return {name: jax.device_put(value, NamedSharding(mesh, s)) for name, (value, s) in values.items()}


@pytest.mark.parametrize("read", SPECS)
@pytest.mark.parametrize("written", SPECS)
def test_arrays_come_back_under_any_division(tmp_path, written, read):
    given, like = arrays(SPECS[written]), arrays(SPECS[read])
    assert local_bytes(given) == 24 * 4 + 24 * 2 + 4  # a replicated array once
    write_shards(tmp_path / "a", given)
    found = read_shards([tmp_path / "a"], like)
    for name, array in found.items():
        assert array.sharding == like[name].sharding
        assert array.dtype == given[name].dtype
        np.testing.assert_array_equal(np.asarray(array), np.asarray(given[name]))


def test_a_whole_array_is_placed_by_regions():
    like = arrays(SPECS["columns"])["matrix"]
    assert (np.asarray(place(like, regions_of(np.asarray(like), like))) == np.asarray(like)).all()


def test_a_damaged_file_names_its_checkpoint(tmp_path):
    part = tmp_path / "10" / "process-0" / "shards"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"{}")
    with pytest.raises(Damaged, match="cannot be read") as raised:
        read_shards([part], arrays(P()))
    assert raised.value.file == tmp_path / "10"
