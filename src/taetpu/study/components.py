"""`taetpu.components`: each part of a model trained without, removed after training, and removed and healed.

The three experiments make one change to the baseline at three times. All are runs of one further study, and each is
compared with a different baseline (see `stats.components`):

- `without`: the model is trained without the part, and compared with the baseline;
- `removed`: the part is removed from the trained baseline, and the model is compared with `unchanged`, which starts
  from the same parameters;
- `healed`: after the removal, the model is trained for a few more steps, and compared with `continued`, the intact
  model after the same number of further steps.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taetpu.core.distributed import require_joined
from taetpu.core.errors import UserError, check_known
from taetpu.spec.loading import derive_arm
from taetpu.spec.resolved_study import Arm, Study
from taetpu.spec.sets import Sets
from taetpu.spec.unresolved_arms import bounded
from taetpu.stats.components import CONTINUED, UNCHANGED
from taetpu.store.backend import default_root, open_store
from taetpu.store.frozen_study import Role, StudyDesign, Way
from taetpu.store.study import StudyFolder
from taetpu.study.loading import load_study
from taetpu.study.outcome import Outcome
from taetpu.study.run import Options, run_study
from taetpu.train.callbacks import Callback
from taetpu.train.layout import parse_packing
from taetpu.train.model_cost import named_shapes

KINDS = ("arms", "branches", "mixers", "ffns", "layers", "heads")
HEAL = 0.1
"""Default number of steps after the removal, as a share of the baseline's."""


@dataclass(frozen=True)
class Part:
    """A part of the baseline: its name, and the overrides that remove it."""

    name: str
    overrides: Mapping[str, Any]


def components(
    file: Path | str | Mapping[str, Any],
    sets: Sets = (),
    *,
    what: str | None = None,
    arms: Sequence[str] = (),
    heal: float = HEAL,
    equivalence: float | None = None,
    root: str | None = None,
    pack: str | int = "auto",
    callback: Callback | None = None,
) -> Outcome:
    """Find out which parts of a study's baseline are necessary, redundant or compensated, as `taetpu components` does.

    The study's baseline must have been trained. Finished runs of the study are reused. A repeated call resumes.

    Args:
        file: the study file, or a dictionary with its content (see `taetpu.load_study`).
        sets: changes to the baseline, in one of the forms that `run` takes, as they were given to `run`.
        what: the parts: `branches` (the mixer and the ffn of each layer), `mixers`, `ffns`, `layers`, `heads`, or
            `arms` (arms of the study that remove parts). By default the arms of `leave_one_out` if there are any,
            otherwise branches.
        arms: the names of the arms whose changes are the removals; by default those of `leave_one_out`.
        heal: the number of steps after a removal, as a share of the baseline's steps.
        equivalence: the equivalence margin, in the unit of the primary metric; by default, that of the study.
        root: see `taetpu.run`.
        pack: see `taetpu.run`.
        callback: receives the training events.

    Returns:
        The outcome. `results["designs"]["components"]` contains the table; see `stats.components.judge_components`.

    Raises:
        UserError: if `run_study` raises it, if a run of the baseline is missing, or if the study has no such parts.
    """
    packing = parse_packing(pack)
    require_joined()
    study = load_study(file, sets)
    store = open_store(default_root(root))
    folder = StudyFolder(store, study.name)
    derived = component_study(study, folder, what=what, arms=arms, heal=heal, equivalence=equivalence)
    options = Options(packing=packing, reuse=(folder.where,))
    return run_study(derived, StudyFolder(store, derived.name), callback or Callback(), options)


def component_study(
    study: Study,
    folder: StudyFolder,
    *,
    what: str | None = None,
    arms: Sequence[str] = (),
    heal: float = HEAL,
    equivalence: float | None = None,
) -> Study:
    """Return the study with each part of a baseline removed in three ways.

    Args:
        study: the study whose baseline is examined.
        folder: the folder of that study, with the trained baseline.
        what: see `components`.
        arms: see `components`.
        heal: see `components`.
        equivalence: see `components`.

    Raises:
        UserError: see `components`.
    """
    if not 0 < heal <= 1:
        remedy = "Use e.g. 0.1 for a tenth of the baseline's steps."
        raise UserError(f"the share of healing steps is {heal:g}, not above 0 and at most 1", path=("heal",),
                        remedy=remedy)  # fmt: skip
    if equivalence is not None and equivalence <= 0:
        problem = f"the margin of equivalence is {equivalence:g}, not above 0"
        raise UserError(problem, path=("equivalence",), remedy="Use the smallest difference that matters, e.g. 0.02.")
    baseline = study.arms[0]
    if baseline.config.train.steps == 0:
        problem = "train.steps is 0, so no model has come to rely on a part"
        remedy = "Compare models without each part with leave_one_out, or set train.steps above 0."
        raise UserError(problem, path=("base", "train", "steps"), remedy=remedy)
    start = _start(study, folder)
    what = what or ("arms" if arms or _left_out(study) else "branches")
    parts = find_parts(study, what, arms)
    train = baseline.config.train
    steps = max(1, round(heal * train.total_steps(study.source(baseline).num_windows)))
    removed, healed = _unchanged(start), _continued(start, steps, constant=train.schedule.kind == "constant")
    settings: dict[Way, dict[str, Any]] = {"without": {}, "removed": removed, "healed": healed}
    against: dict[Way, str] = {"without": baseline.name, "removed": UNCHANGED, "healed": CONTINUED}
    made = [baseline, *(_arm(study, name, settings[way], {"design": "components", "against": name})
                        for way, name in against.items() if name != baseline.name)]  # fmt: skip
    for part in parts:
        for way, more in settings.items():
            role: Role = {"design": "components", "part": part.name, "way": way, "against": against[way]}
            made.append(_arm(study, f"{way}-{part.name}", {**part.overrides, **more}, role))
    measure = study.measure.model_copy(update={"looks": (), "contrasts": {}, "post_hoc": ()})
    if equivalence is not None:
        measure = measure.model_copy(update={"equivalence": equivalence})
    design: StudyDesign = {
        "components": {"of": study.name, "what": what, "steps": steps, "parts": [part.name for part in parts]}
    }
    return study.changed(
        name=_name(study, what, heal, equivalence),
        arms=tuple(made),
        measure=measure,
        design=design,
        match=(),
        tune=None,
        contrasts={},
    )


def _name(study: Study, what: str, heal: float, equivalence: float | None) -> str:
    """Return the name of a component study, with the settings that differ from the defaults."""
    settings = [f"heal={heal:g}"] if heal != HEAL else []
    settings += [f"equivalence={equivalence:g}"] if equivalence not in (None, study.measure.equivalence) else []
    return bounded("-".join([study.name, "components", what, *settings]))


def _start(study: Study, folder: StudyFolder) -> str:
    """Return the folder of the trained baseline for `train.start`, with a placeholder for the seed.

    Raises:
        UserError: if a run of the baseline is missing, or the study is stored in a bucket.
    """
    if "://" in folder.where:
        remedy = f"Copy it with `gcloud storage cp -r {folder.where} FOLDER`, then use --root FOLDER."
        raise UserError("the study must be stored in a local folder", file=folder.where, remedy=remedy)
    first, wanted = study.arms[0].name, {run.seed: run.id[:8] for run in study.runs() if run.arm == study.arms[0].name}
    done = {run.seed: run.id for run in folder.runs() if run.arm == first and run.status() == "done"}
    for seed, run_id in wanted.items():
        if done.get(seed) != run_id:
            what = "is not finished" if seed not in done else "was trained with other settings"
            problem = f"the baseline of study {study.name!r} with seed {seed} {what}"
            command = "taetpu.run" if study.file is None else f"taetpu run {study.file.name}"
            raise UserError(problem, file=folder.where, remedy=f"Run `{command}` first.")
    return f"{os.path.relpath(folder.where, study.folder)}/runs/{first}/{{seed}}-*"


def _unchanged(start: str) -> dict[str, Any]:
    """Return the settings of a run that only evaluates a stored model: one step that trains no parameter."""
    return {
        "train.start": start,
        "train.steps": 1,
        "train.epochs": None,
        "train.optimizer": {"kind": "sgd", "lr": 0.1, "groups": {"all": {"match": "*", "lr": 0}}},
        "train.schedule": {"kind": "constant"},
    }


def _continued(start: str, steps: int, *, constant: bool) -> dict[str, Any]:
    """Return the settings of a run that trains a stored model for a few more steps with the baseline's optimizer."""
    schedule = {"kind": "constant"} if constant else {"kind": "cosine", "warmup_share": 0.1}
    return {"train.start": start, "train.steps": steps, "train.epochs": None, "train.schedule": schedule}


def _arm(study: Study, name: str, overrides: Mapping[str, Any], role: Role) -> Arm:
    return derive_arm(study, study.arms[0], name, overrides, "component", role)


# --- parts -----------------------------------------------------------------------------------------------------------


def find_parts(study: Study, what: str, arms: Sequence[str] = ()) -> list[Part]:
    """Return the parts of a study's baseline.

    Args:
        study: the study.
        what: see `components`.
        arms: see `components`.

    Raises:
        UserError: if there are no such parts, or an arm has parameters that the baseline lacks.
    """
    check_known(what, KINDS, f"unknown parts {what!r}", path=("what",))
    if what == "arms":
        names = arms or _left_out(study)
        if not names:
            remedy = "Name arms that remove a part (--arm), or use --what branches."
            raise UserError("the study has no leave_one_out, and no arm is named", path=("what",), remedy=remedy)
        return [_of_arm(study, name) for name in dict.fromkeys(names)]
    if arms:
        problem = f"arms are listed, but the parts are {what}"
        raise UserError(problem, path=("arms",), remedy="Use only one of --arm and --what.")
    parts = list(_of_layers(study, what))
    if not parts:
        slots = sorted({getattr(layer, slot).kind for layer in study.arms[0].config.model.layers
                        for slot in ("mixer", "ffn")})  # fmt: skip
        problem = f"the baseline has no {what} that can be removed; its layers have {', '.join(slots)}"
        raise UserError(problem, path=("what",), remedy=f"Use one of: {', '.join(KINDS)}.")
    return parts


def _left_out(study: Study) -> list[str]:
    """Return the arms of `leave_one_out` that change a single part."""
    roles = {arm.name: arm.role for arm in study.arms if "ladder" not in arm.role}
    return [name for name, role in roles.items() if role.get("design") == "leave_one_out" and role.get("part")]


def _of_arm(study: Study, name: str) -> Part:
    known = {arm.name: arm for arm in study.arms[1:]}
    check_known(name, known, f"study {study.name!r} has no arm {name!r}", path=("arms",))
    arm, first = known[name], study.arms[0]
    if arm.role.get("against", first.name) != first.name or arm.config.train != first.config.train:
        problem = f"arm {name!r} changes more than the model of the baseline"
        raise UserError(problem, path=("arms",), remedy="Use arms that remove a part of the baseline's model.")
    source = study.source(arm)
    have, new = (named_shapes(compared.config.model, source.interface, source.seq_len) for compared in (first, arm))
    if added := [name for name, shape in new.items() if have.get(name) != shape]:
        problem = f"arm {name!r} has parameters that the baseline lacks, such as {added[0]}, so it removes no part"
        raise UserError(problem, path=("arms",), remedy="Use arms that remove a part of the baseline's model.")
    part = arm.role.get("part") if arm.role.get("design") == "leave_one_out" else None
    return Part(part or name, arm.overrides)


def _of_layers(study: Study, what: str) -> Iterator[Part]:
    """Yield the branches, layers or heads of the baseline's layers that can be dropped."""
    model = study.arms[0].config.model
    for number, layer in enumerate(model.layers):
        path = f"model.layers.{number}"
        if what == "layers":
            yield Part(f"layer-{number}", {f"{path}.drop": [*layer.drop, "layer"]})
        if what == "heads":
            dropped, heads = layer.typed_mixer.setting("drop_heads"), layer.typed_mixer.heads(model.dims(0, 0))
            if dropped is not None and heads is not None:
                for head in sorted(set(range(heads.num_heads)) - set(dropped)):
                    yield Part(f"head-{number}.{head}", {f"{path}.mixer.drop_heads": [*dropped, head]})
        for slot in ("mixer", "ffn"):
            if what in (f"{slot}s", "branches") and getattr(layer, slot).kind != "none" and slot not in layer.drop:
                yield Part(f"{slot}-{number}", {f"{path}.drop": [*layer.drop, slot]})
