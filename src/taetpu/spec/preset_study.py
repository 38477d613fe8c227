"""Studies that lead from one preset to another, with an arm for each difference."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from taetpu.core.config_parsing import load_config
from taetpu.core.errors import UserError, check_known
from taetpu.nn.lm import ModelConfig
from taetpu.nn.mask import SlidingConfig
from taetpu.spec.document import format_yaml
from taetpu.spec.loading import resolve_overrides
from taetpu.spec.preset_differences import Difference, differences, join_dependent
from taetpu.spec.presets import PRESETS, expand_preset
from taetpu.spec.resolved_study import Study
from taetpu.store.documents import to_yaml

DESIGNS = ("forward", "backward", "both", "pairs")
WIDTH = 120
MAX_FULL = 4
"""Number of parts up to which all combinations are trained. Half of those of five parts tell all pairs apart."""
KEPT = ("primary", "direction", "equivalence", "alpha")

HEADER = """\
# {question}
#
#   taetpu plan {file}         show arms, changes, parameters and time without training
#   taetpu run {file}          train missing runs, then report; run it again to resume
#
"""

STUDY = """\
{header}study: {name}

base:
  task:
    kind: text
    source: python-docs          # or a text file or folder beside this file, or a name: taetpu catalog corpus
    tokenizer: {{kind: char}}
    seq_len: {seq_len}{objective}
  model: {{preset: {preset}, dim: {dim}, num_layers: {num_layers}}}
  train:
    steps: 1000
    batch_size: 16
    optimizer: {{kind: adamw, lr: 3e-3}}
    schedule: {{kind: cosine, warmup: 100}}

seeds: 5

{parts}

measure: {{primary: val/loss, direction: min, equivalence: 0.01}}
"""

ABOUT = {
    "forward": "The baseline is {start} ({start_about}) at this size. Each arm takes one property of {end} "
    "({end_about}), and the arm with-all takes all of them.",
    "backward": "The baseline is {end} ({end_about}) at this size. Each arm replaces one of its properties by that of "
    "{start} ({start_about}), and the arm without-all replaces all of them.",
    "both": "The baseline is {start} ({start_about}) at this size, and the arm with-all is {end} ({end_about}). Each "
    "difference is added alone to {start}, and removed alone from {end} (with-all-but-NAME, compared with with-all).",
}
MASKED = "\n    objective: masked-lm"


def preset_model(name: str, dim: int, num_layers: int) -> ModelConfig:
    """Return the model of a preset.

    Raises:
        UserError: If there is no such preset.
    """
    check_known(name, PRESETS, f"unknown preset {name!r}")
    return load_config(ModelConfig, expand_preset({"preset": name, "dim": dim, "num_layers": num_layers}))


def causal_presets() -> list[str]:
    """Return the presets that predict next tokens."""
    return [name for name in PRESETS if preset_model(name, 64, 2).resolve().predicts_next]


def write_study(name: str, start: str, end: str, dim: int, num_layers: int, design: str = "forward") -> str:
    """Return the text of a study with an arm for each difference between two presets, and an arm with all.

    Encoders are compared as masked language models.

    Args:
        name: The name of the study.
        start: The preset that the study leads from.
        end: The preset that it leads to.
        dim: The width of both models.
        num_layers: The number of layers of both models.
        design: One of `DESIGNS` but `pairs`: whether each difference is added to the first model (`forward`), removed
            from the second (`backward`), or both in one study.

    Raises:
        UserError: If a preset is unknown, only one of the presets predicts next tokens, the presets do not differ at
            this size, or a difference cannot be made alone.
    """
    first, second = (preset_model(preset, dim, num_layers) for preset in (start, end))
    causal = causal_presets()
    if (start in causal) != (end in causal):
        encoder, other = (end, start) if start in causal else (start, end)
        problem = f"{encoder} sees later tokens and {other} predicts them, so no loss compares both"
        alike = causal if start in causal else [preset for preset in PRESETS if preset not in causal]
        raise UserError(problem, path=("--to",), remedy=f"Use with {start} one of: {', '.join(alike)}.")
    seq_len = _seq_len(first, second)
    task = {"kind": "text", "source": "python-docs", "seq_len": seq_len}
    task |= {} if start in causal else {"objective": "masked-lm"}
    bases = [{"task": task, "model": expand_preset({"preset": preset, "dim": dim, "num_layers": num_layers}),
              "train": {"steps": 1}} for preset in (start, end)]  # fmt: skip
    parts = differences(first, second)
    if not parts:
        raise UserError(f"{start} and {end} do not differ", remedy=f"Use two of: {', '.join(PRESETS)}.")
    parts = join_dependent(parts, *(lambda changes, base=base: _is_valid(base, changes) for base in bases))
    key = "leave_one_out" if design == "backward" else "add_one_in"
    lines = [f"{key}:", *["  both_ways: true"] * (design == "both")]
    lines += [_part_text(part, part.backward if design == "backward" else part.forward) for part in parts]
    about = ABOUT[design].format(start=start, end=end, start_about=PRESETS[start].about, end_about=PRESETS[end].about)
    header = _header(name, f"Which of the differences between {start} and {end} matter?", about)
    return STUDY.format(
        header=header, name=name, preset=end if design == "backward" else start, dim=dim,
        num_layers=num_layers, parts="\n".join(lines), seq_len=seq_len,
        objective="" if start in causal else MASKED,
    )  # fmt: skip


def _is_valid(base: Mapping[str, Any], changes: Mapping[str, Any]) -> bool:
    try:
        resolve_overrides(base, changes).check()
    except UserError:
        return False
    return True


def parts_of(study: Study) -> dict[str, Mapping[str, Any]]:
    """Return the changes of each part of `leave_one_out` or `add_one_in`, as written in the study file.

    Raises:
        UserError: If the study does not have exactly one of both.
    """
    keys = [key for key in ("leave_one_out", "add_one_in") if study.document.data.get(key)]
    if len(keys) != 1:
        problem = f"{study.name} has {' and '.join(keys) or 'neither leave_one_out nor add_one_in'}"
        raise UserError(problem, file=study.document.file, remedy="Name a study with one of the two.")
    return {part: changes for part, changes in study.document.data[keys[0]].items() if isinstance(changes, Mapping)}


def write_pairs(name: str, study: Study, parts: Mapping[str, Mapping[str, Any]], seeds: Sequence[int]) -> str:
    """Return the text of a study that crosses parts of another study, to estimate the interaction of each pair.

    Args:
        name: The name of the study.
        study: The other study, whose baseline and measure the study has.
        parts: The changes of each part.
        seeds: The seeds. Those of the other study chose the parts, so they would bias the interactions.
    """
    data = study.document.data
    about = (
        f"The baseline is that of the study {data['study']}, whose results chose the parts. The seeds are others, so "
        "that the choice does not bias the interactions. Every combination of the parts is an arm, or half of them."
    )
    measure = {key: value for key, value in (data.get("measure") or {}).items() if key in KEPT}
    settings = {
        "study": name,
        **({"plugins": data["plugins"]} if data.get("plugins") else {}),
        "base": data["base"],
        "seeds": list(seeds),
        "factorial": {**({"fraction": "1/2"} if len(parts) > MAX_FULL else {}), **parts},
        **({"measure": measure} if measure else {}),
    }
    return _header(name, "Do the parts that matter depend on each other?", about) + to_yaml(settings).decode()


def _header(name: str, question: str, about: str) -> str:
    return HEADER.format(question=question, file=f"{name}.yaml") + _comment(about, "")


def _comment(text: str, indent: str) -> str:
    """Return the lines of a comment with their line ends."""
    lead = f"{indent}# "
    return textwrap.fill(text, WIDTH, initial_indent=lead, subsequent_indent=lead, break_on_hyphens=False) + "\n"


def _seq_len(*models: ModelConfig) -> int:
    """Return a power of two above the widths of the models' windows, in which each window hides positions."""
    masks = [layer.typed_mixer.effective_mask for model in models for layer in model.resolve().layers]
    widest = max((mask.width or 0 for mask in masks if isinstance(mask, SlidingConfig)), default=0)
    return max(64, 2 ** widest.bit_length())


def _part_text(part: Difference, overrides: Mapping[str, Any]) -> str:
    """Return the lines of a study file that define a part, with a comment on what differs."""
    comment = _comment("; ".join(part.about), "  ")
    if len(overrides) == 1:
        return f"{comment}  {part.name}: {format_yaml(overrides)}"
    lines = [f"    {path}: {format_yaml(value)}" for path, value in overrides.items()]
    return "\n".join([f"{comment}  {part.name}:", *lines])
