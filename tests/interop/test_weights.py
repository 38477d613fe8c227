"""Safetensors files: every tensor has one name and one place, and its numbers are those of the file."""

import json

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch
from tests.interop.cases import arrays, imported, theirs

from taetpu.core.errors import DataWarning, UserError
from taetpu.interop.exporting import save_folder
from taetpu.interop.huggingface import from_huggingface, load_folder
from taetpu.nn.named_arrays import named_parameters

NORM = "model.norm.weight"
SHARDS = ("a.safetensors", "b.safetensors")


@pytest.fixture
def folder(tmp_path, llama):
    (tmp_path / "config.json").write_text(json.dumps(llama[0]))
    return tmp_path


def write_shards(folder, tensors, index=None, also=()):
    """Write tensors to two files, those in `also` to both, and an index, of which `index` changes entries."""
    names = sorted(tensors)
    parts = dict(zip(SHARDS, (names[::2], names[1::2]), strict=True))
    for file, part in parts.items():
        save_file({name: tensors[name] for name in {*part, *also}}, folder / file)
    files = {name: file for file, part in parts.items() for name in part} | (index or {})
    listed = {name: file for name, file in files.items() if file is not None}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": listed}))


def refused(folder, text):
    with pytest.raises(UserError, match=text):
        load_folder(folder)


# --- names and places ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["gpt2", "llama-linear", "neox"])
def test_a_weight_under_two_names_is_refused(case):
    hf = theirs(case)
    tensors = arrays(hf)
    prefixed = next(name for name in tensors if name.startswith(("transformer.", "model.", "gpt_neox.")))
    bare = prefixed.partition(".")[2]
    with pytest.raises(
        UserError, match=rf"{prefixed!r} is stored twice, as '{prefixed}' and as '{bare}'\n  remedy: Re"
    ):
        from_huggingface(hf.config.to_dict(), {**tensors, bare: tensors[prefixed] + 1})


def test_a_head_under_two_names_is_refused():
    hf = theirs("neox")
    tensors = arrays(hf)
    head = tensors["lm_head.weight"]
    with pytest.raises(UserError, match=r"'embed_out.weight' is stored twice"):
        from_huggingface(hf.config.to_dict(), {**tensors, "embed_out.weight": head + 1})


def test_a_weight_in_two_shards_is_refused(folder, llama):
    write_shards(folder, llama[1], also=(NORM,))
    refused(folder, rf"'{NORM}' is in '.\.safetensors', but the index names '.\.safetensors' for it\n  where:  .*index")


def test_a_weight_in_another_shard_than_the_index_says_is_refused(folder, llama):
    write_shards(folder, llama[1])
    index = folder / "model.safetensors.index.json"
    files = json.loads(index.read_text())["weight_map"]
    other = SHARDS[1 - SHARDS.index(files[NORM])]
    write_shards(folder, llama[1], {NORM: other})
    refused(folder, rf"'{NORM}' is in '{files[NORM]}', but the index names '{other}' for it")
    write_shards(folder, llama[1], {NORM: None})
    refused(folder, rf"'{NORM}' is in '{files[NORM]}', but the index does not list it")
    write_shards(folder, llama[1], {"extra.weight": SHARDS[0]})
    refused(folder, r"'extra.weight' is not in 'a.safetensors', which the index names for it\n  where:  .*index")


def test_weights_beside_an_index_of_others_are_refused(folder, llama):
    write_shards(folder, llama[1])
    save_file(llama[1], folder / "model.safetensors")
    refused(
        folder, r"stored twice: in model.safetensors and in the files of model.safetensors.index.json\n.*\n.*Remove"
    )
    for shard in SHARDS:
        (folder / shard).unlink()
    assert load_folder(folder)[0] == imported("llama-linear")[0]


def test_tensors_that_no_model_uses_need_not_be_listed(folder, llama):
    unused = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(3, np.int64)}
    write_shards(folder, llama[1] | unused, dict.fromkeys(unused))
    assert load_folder(folder)[0] == imported("llama-linear")[0]


def test_an_untied_model_without_a_head(llama):
    config, tensors = llama
    without = {name: array for name, array in tensors.items() if name != "lm_head.weight"}
    with pytest.raises(UserError, match=r"'lm_head.weight' is missing\n  remedy: .* set tie_word_embeddings to true"):
        from_huggingface(config, without)
    assert from_huggingface(config | {"tie_word_embeddings": True}, without)[0].embedding.kind == "tied"


# --- numbers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_float8(folder, llama, dtype):
    tensors = llama[1]
    small = {name: torch.tensor(array).to(getattr(torch, dtype)) for name, array in tensors.items()}
    save_torch(small | {NORM: torch.tensor(tensors[NORM])}, folder / "model.safetensors")
    stored = named_parameters(load_folder(folder)[1])
    expected = tensors["model.embed_tokens.weight"].astype(getattr(ml_dtypes, dtype)).astype(np.float32)
    np.testing.assert_array_equal(stored["embedding.weight"], expected)
    np.testing.assert_array_equal(stored["norm.weight"], tensors[NORM])


def test_other_dtypes_are_refused_by_name(folder, llama):
    for dtype in (torch.int8, torch.float8_e8m0fnu, torch.complex64):
        tensors = {name: torch.tensor(array) for name, array in llama[1].items()}
        save_torch(tensors | {NORM: tensors[NORM].to(dtype)}, folder / "model.safetensors")
        refused(folder, rf"'{NORM}' has the unsupported dtype \w+\n  where:  .*model.safetensors\n  remedy: Convert")


def test_float64_beyond_float32_is_refused(llama):
    config, tensors = llama
    large = tensors[NORM].astype(np.float64)
    assert from_huggingface(config, tensors | {NORM: large})[0] == imported("llama-linear")[0]
    large[2] = -1e300
    with pytest.raises(UserError, match=rf"'{NORM}' holds -1e\+300, which float32 cannot represent"):
        from_huggingface(config, tensors | {NORM: large})


def test_sizes_that_no_memory_holds(llama):
    """A tensor of a few bytes is compared with a config of 500 GB."""
    config = {**llama[0], "vocab_size": 2**20, "hidden_size": 2**17}
    with pytest.raises(UserError, match=r"'model.embed_tokens.weight' has shape \(11, 16\), .*\(1048576, 131072\)"):
        from_huggingface(config, llama[1])


@pytest.mark.parametrize("number", [np.nan, -np.inf])
def test_numbers_that_are_not_finite_are_named(tmp_path, llama, number):
    config, tensors = llama
    bad = np.where(np.arange(16) == 3, number, tensors[NORM]).astype(np.float32)
    text = rf"1 of {len(tensors)} tensors hold NaN or infinite numbers: {NORM}$"
    with pytest.warns(DataWarning, match=text):
        config, model = from_huggingface(config, tensors | {NORM: bad})
    np.testing.assert_array_equal(named_parameters(model)["norm.weight"], bad)
    with pytest.warns(DataWarning, match=text):
        save_folder(tmp_path / "out", config, model)
    with pytest.warns(DataWarning, match=text):
        load_folder(tmp_path / "out")
