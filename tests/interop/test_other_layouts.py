"""Weights in other layouts than those of transformers: nanoGPT, compiled models, LoRA adapters of PEFT."""

import json
import shlex
import subprocess
import sys

import jax
import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from tests.interop.cases import TOKENS, VOCAB, arrays, forward, their_logits, theirs

from taetpu.core.errors import UserError
from taetpu.interop.families import REFUSED
from taetpu.interop.huggingface import import_config, import_folder
from taetpu.interop.weights import CONVERT_NANOGPT
from taetpu.lens.opening import open_run

MATRICES = ("c_attn.weight", "c_proj.weight", "c_fc.weight")


@pytest.mark.slow
def test_a_checkpoint_of_nanogpt_is_converted_and_read(tmp_path):
    """Conv1D of GPT-2 has the transposed matrices of nanoGPT's Linear."""
    hf = theirs("gpt2-nanogpt")
    state = {
        f"_orig_mod.module.{name}": tensor.T.contiguous() if name.endswith(MATRICES) else tensor
        for name, tensor in hf.state_dict().items()
    }
    config = hf.config
    sizes = {"n_layer": config.n_layer, "n_head": config.n_head, "n_embd": config.n_embd, "block_size": 12}
    content = {"model": state, "model_args": {**sizes, "bias": True, "vocab_size": VOCAB, "dropout": 0.0}}
    torch.save(content, tmp_path / "ckpt.pt")
    with pytest.raises(UserError, match=r"ckpt\.pt") as refused:
        import_folder(tmp_path)
    assert refused.value.remedy == CONVERT_NANOGPT
    _, option, code = shlex.split(refused.value.remedy[refused.value.remedy.index("python") :])
    subprocess.run([sys.executable, option, code], cwd=tmp_path, check=True)
    made = import_folder(tmp_path)
    assert (made.family.model_type, made.seq_len, made.config.dropout) == ("nanogpt", 12, 0.0)
    np.testing.assert_allclose(forward(made.model, TOKENS), their_logits(hf), atol=5e-5)


def write_base(folder, case: str) -> dict[str, np.ndarray]:
    """Write the folder of a model without transformers, and return its tensors."""
    folder.mkdir()
    tensors = arrays(theirs(case))
    save_file({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(theirs(case).config.to_dict()))
    return tensors


def write_adapter(folder, matrices: dict[str, np.ndarray], **settings) -> None:
    folder.mkdir()
    save_file(
        {f"base_model.model.{name}.weight": x for name, x in matrices.items()}, folder / "adapter_model.safetensors"
    )
    config = {
        "peft_type": "LORA", "base_model_name_or_path": str(folder.parent / "base"), "r": 2, "lora_alpha": 6,
        "bias": "none", "target_modules": ["q_proj"], "inference_mode": True, "modules_to_save": None,
        "rank_pattern": {}, "lora_dropout": 0.1, **settings,
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(("case", "name", "shape", "scale", "settings"), [
    ("llama-linear", "model.layers.1.self_attn.q_proj", (24, 16), 3, {}),
    ("gpt2", "transformer.h.2.attn.c_attn", (48, 16), 6 / 2**0.5, {"use_rslora": True}),
])  # fmt: skip
def test_an_adapter_is_added_to_its_base_model(tmp_path, case, name, shape, scale, settings):
    random = np.random.default_rng(0)
    before = write_base(tmp_path / "base", case)
    down, up = random.normal(size=(2, shape[1])).astype("f4"), random.normal(size=(shape[0], 2)).astype("f4")
    write_adapter(tmp_path / "adapter", {f"{name}.lora_A": down, f"{name}.lora_B": up}, **settings)
    change = scale * up @ down
    merged = {**before, f"{name}.weight": before[f"{name}.weight"] + (change.T if case == "gpt2" else change)}
    base = import_folder(tmp_path / "base").model
    made = import_folder(tmp_path / "adapter").model
    opened = open_run(tmp_path / "adapter").model
    assert jax.tree.all(jax.tree.map(np.array_equal, opened, made))
    save_file({key: np.ascontiguousarray(x) for key, x in merged.items()}, tmp_path / "base" / "model.safetensors")
    np.testing.assert_allclose(
        forward(made, TOKENS), forward(import_folder(tmp_path / "base").model, TOKENS), atol=1e-5
    )
    assert np.abs(forward(made, TOKENS) - forward(base, TOKENS)).max() > 0.01


@pytest.mark.parametrize(("settings", "path"), [
    ({"use_dora": True}, "use_dora"), ({"peft_type": "IA3"}, "peft_type"), ({"bias": "all"}, "bias"),
    ({"modules_to_save": ["lm_head"]}, "modules_to_save"), ({"init_lora_weights": "pissa"}, "init_lora_weights"),
    ({"rank_pattern": {"q_proj": 4}}, "rank_pattern"), ({"r": 0}, "r"), ({"r": 3}, ""),
    ({"base_model_name_or_path": "no/folder"}, "base_model_name_or_path"),
])  # fmt: skip
def test_adapters_that_are_refused(tmp_path, settings, path):
    write_base(tmp_path / "base", "llama-linear")
    name = "model.layers.1.self_attn.q_proj"
    matrices = {f"{name}.lora_A": np.ones((2, 16), "f4"), f"{name}.lora_B": np.ones((24, 2), "f4")}
    write_adapter(tmp_path / "adapter", matrices, **settings)
    with pytest.raises(UserError) as refused:
        import_folder(tmp_path / "adapter")
    assert refused.value.path[:1] == ((path,) if path else ())
    assert refused.value.remedy


@pytest.mark.parametrize("name", ["model.layers.9.self_attn.q_proj.lora_A", "model.embed_tokens.lora_embedding_A"])
def test_matrices_that_belong_nowhere(tmp_path, name):
    write_base(tmp_path / "base", "llama-linear")
    write_adapter(tmp_path / "adapter", {name: np.ones((2, 16), "f4")})
    with pytest.raises(UserError, match=r"lora_(embedding_)?A") as refused:
        import_folder(tmp_path / "adapter")
    assert refused.value.file.name == "adapter_model.safetensors"


@pytest.mark.parametrize("kind", REFUSED)
def test_refused_types_state_the_reason(kind):
    with pytest.raises(UserError, match=kind) as refused:
        import_config({"model_type": kind})
    assert REFUSED[kind] in refused.value.problem
