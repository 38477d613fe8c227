"""Shards are written with one sharding and read with another."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from taetpu.store.digests import Damaged
from taetpu.train.shard_files import local_bytes, read_shards, write_shards

SPECS = {"rows": P("d"), "columns": P(None, "d"), "whole": P()}


def arrays(spec: P) -> dict[str, jax.Array]:
    """Return a matrix with the sharding `spec`, a bfloat16 copy of it, and a scalar."""
    mesh = Mesh(jax.devices()[:2], ("d",))
    matrix = np.arange(24, dtype=np.float32).reshape(4, 6)
    values = {"matrix": (matrix, spec), "half": (matrix.astype(jnp.bfloat16), spec), "step": (np.int32(7), P())}
    return {name: jax.device_put(value, NamedSharding(mesh, s)) for name, (value, s) in values.items()}


@pytest.mark.parametrize("read", SPECS)
@pytest.mark.parametrize("written", SPECS)
def test_arrays_are_read_with_any_sharding(tmp_path, written, read):
    given, like = arrays(SPECS[written]), arrays(SPECS[read])
    assert local_bytes(given) == 24 * 4 + 24 * 2 + 4  # a replicated array once
    write_shards(tmp_path / "a", given)
    found = read_shards([tmp_path / "a"], like)
    for name, array in found.items():
        assert array.sharding == like[name].sharding
        assert array.dtype == given[name].dtype
        np.testing.assert_array_equal(np.asarray(array), np.asarray(given[name]))


def test_random_keys_are_stored_by_their_data(tmp_path):
    keys = {
        "keys": jax.device_put(
            jax.random.split(jax.random.key(1), 4), NamedSharding(Mesh(jax.devices(), ("d",)), P("d"))
        )
    }
    write_shards(tmp_path / "a", keys)
    found = read_shards([tmp_path / "a"], keys)["keys"]
    assert found.dtype == keys["keys"].dtype
    np.testing.assert_array_equal(jax.random.key_data(found), jax.random.key_data(keys["keys"]))


def test_damaged_file_error_names_the_checkpoint(tmp_path):
    part = tmp_path / "10" / "process-0" / "shards"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"{}")
    with pytest.raises(Damaged, match="cannot be read") as raised:
        read_shards([part], arrays(P()))
    assert raised.value.file == tmp_path / "10"
