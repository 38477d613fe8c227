"""`taetpu run --on tpu`: a study from no machine to its report, and back to none."""

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from taetpu.cli.cloud import Here, here, tell
from taetpu.cli.consent import agreed
from taetpu.cli.leaving import telling
from taetpu.cli.offer import Offer
from taetpu.cli.study_job import StudyJob, check_paths, finished, sources
from taetpu.cli.tables import show_json
from taetpu.cli.wanted import Wanted

if TYPE_CHECKING:
    from taetpu.cloud.backends.base import Machine
    from taetpu.cloud.cost import Before
    from taetpu.cloud.spec import Spec
    from taetpu.cloud.supervise import Budget
    from taetpu.spec.design import Study
    from taetpu.store.backend import Store

FETCHED = ("results.json", "study.yaml", "report/")
"""What comes back of a study's folder; runs and models stay in the bucket."""


def run_on_tpu(
    file: Path, sets: list[str], root: str | None, words: Sequence[str], wanted: Wanted, *,
    name: str | None, keep: bool, yes: bool, dry_run: bool, as_json: bool,
) -> int:  # fmt: skip
    """Train a study on a Cloud TPU with its folder in the bucket, whatever becomes of machines; its exit code.

    Args:
        words: further options of `taetpu run`.
        name: of the TPU; None: one after the owner and the study. One of this name that was not made for the study is
            used and kept.
        keep: leave the machine when the study has ended.

    Raises:
        UserError: the study, the settings or the bucket are not as they must be; nothing was made.
        CloudError: no machine can be had, or too many were lost.
    """
    from taetpu.cloud.bucket import region
    from taetpu.cloud.reconcile import remains
    from taetpu.cloud.spec import label, stack_of
    from taetpu.cloud.supervise import Budget, Kept, Lost, before, note, supervise
    from taetpu.core.errors import UserError
    from taetpu.spec.loading import load_study
    from taetpu.store.backend import open_store

    study, place = load_study(file, sets), here()
    check_paths(study)
    address = _root(place, root)
    store = open_store(address)
    check_stored(store, study)
    spec = wanted.spec(place, name or stack_of(label(place.settings.owner), study.name))
    spec, budget, cloud = replace(spec, study=label(study.name)), Budget(hours=spec.hours), place.cloud
    if finished(store, study, words) and not _own(cloud.of(spec.stack), spec):
        tell(f"nothing of {study.name} is left to train: no TPU is made")
        if not dry_run:
            note(cloud, spec.stack, None)
            _fetch(store, study.name, as_json)
        elif as_json:
            show_json({"study": study.name, "into": store.where(study.name), "left": False})
        return 0
    used = before(cloud, spec, budget)
    hours = max(0.0, budget.hours - used.hours)
    spec = replace(spec, hours=max(budget.shortest, hours))
    near = region(place.clients, address.removeprefix("gs://").partition("/")[0])
    offer = Offer.of(place, spec, wanted, again=hours >= budget.shortest, before=used, near=near)
    *lines, last = _plan(offer, budget, used, f"{study.name} there into {store.where(study.name)}", keep)
    lines += [*_spent(used, wanted.limits(place.settings).max_usd), *_across(offer, near), last]
    if not agreed(place.noted("\n".join(lines)), "Go on?", yes=yes, dry_run=dry_run):
        if as_json:
            told = {"study": study.name, "into": store.where(study.name), "left": True, "hours": hours}
            stays = keep or bool(offer.rest and not _ours(offer))
            show_json(told | {"recoveries": budget.recoveries, "keep": stays} | offer.data())
        return 0
    setting = [word for one in sets for word in ("--set", one)]
    job = StudyJob(place, offer, study, store, file, [*setting, "--root", address, *words])

    def up(hours: float) -> "Machine":
        job.name = ""  # what ran on the machine before is at its end
        job.machine = offer.made(hours)
        return job.machine

    def leaving() -> str:
        return job.detached(store.where(study.name)) if job.name else remains(cloud, spec.stack)

    try:
        with telling(leaving):
            code = supervise(cloud, up, job, lambda: kept(store, study.name), budget, spec.stack, spec.study)
    except UserError as error:
        if not isinstance(error, Kept | Lost) and (there := remains(cloud, spec.stack)):
            tell(there)
        raise
    with telling(lambda: remains(cloud, spec.stack)):
        try:
            _fetch(store, study.name, as_json)
        finally:
            leave(place, spec.stack, keep or not job.own)
    if code:
        where = store.where(study.name)
        tell(f"{study.name} ended with exit code {code}, for the reason above; what it has stored stays in {where}")
    return code


def check_stored(store: "Store", study: "Study") -> None:
    """Find out what is wrong with the bucket, or with what is stored there, before anything is paid for.

    Raises:
        UserError: it cannot be read, or the study's folder holds another study.
    """
    from taetpu.data.corpora import PYTHON_DOCS
    from taetpu.spec.design import check_frozen, frozen
    from taetpu.stats.stored import read_study
    from taetpu.store.study import StudyFolder

    store.list(study.name)
    folder = StudyFolder(store, study.name)
    if folder.exists() and not study.match:
        # The texts that come with Python may be those of another version there.
        docs = PYTHON_DOCS in sources(study)
        check_frozen(read_study(folder) | ({"data": frozen(study)["data"]} if docs else {}), study)


def kept(store: "Store", name: str) -> str:
    """What of a study's folder the next machine goes on from: a sum over the runs that are done, and the states of
    packs that are not.
    """
    found = (re.search(r".*/runs/.*/result\.json$|.*/packs/[^/]+/\d+(?=/)", key) for key in store.list(name))
    return hashlib.sha256("\n".join(sorted({one[0] for one in found if one})).encode()).hexdigest()[:16]


def _own(machines: "Sequence[Machine]", spec: "Spec") -> bool:
    """Whether one of them was made for the study of a spec."""
    return any(machine.study == spec.study for machine in machines)


def _across(offer: Offer, near: str) -> list[str]:
    """A warning where machines may be outside the bucket's region."""
    from taetpu.cloud.bucket import apart

    zones = (*offer.prices, *([offer.there.zone] if offer.there and offer.rest else []))
    warning = apart(near, zones)
    return [f"warning: {warning}"] if warning else []


def _spent(used: "Before", most: float | None) -> list[str]:
    """What of the limit on dollars is spent."""
    if most is None or not used.usd:
        return []
    return [f"max_usd {most:g} is for all of these machines together: ${used.usd:.2f} of it spent already"]


def _ours(offer: Offer) -> bool:
    """Whether the machine that is there was made for the study, or one would be."""
    return offer.there is None or _own([offer.there], offer.spec)


def _plan(offer: Offer, budget: "Budget", used: "Before", what: str, keep: bool) -> list[str]:
    """What will happen, in lines.

    Args:
        used: of the budget.
        what: is trained where.

    Raises:
        Conflict: a machine of this name is stopped that was not made for the study.
    """
    from taetpu.cloud.backends.base import State
    from taetpu.cloud.errors import Conflict

    there, stack = offer.there, offer.spec.stack
    lines, own = [offer.plan()], _ours(offer)
    if there and not own and there.state is State.STOPPED:
        problem = f"{stack} in {there.zone} is stopped, and was not made for this study"
        raise Conflict(problem, remedy=f"start it, or `taetpu tpu down {stack}`; or leave --tpu out")
    if used.hours:
        lines.append(f"of the {budget.hours:g} h that its machines may take together {used.hours:.3g} are used")
    if (hours := budget.hours - used.hours) >= budget.shortest:
        lines.append(f"made again where it is lost, at most {budget.recoveries} times and for {hours:.3g} h together")
    else:
        lines.append("not made again should it be lost: too little is left of its hours")
    if own or not offer.rest:
        return [*lines, f"train {what}, then {'keep' if keep else 'delete'} the TPU"]
    lines.append(f"{stack} was not made for this study: it is made again only if it is gone for good")
    return [*lines, f"train {what}, then keep the TPU"]


def leave(place: Here, stack: str, keep: bool) -> None:
    """Remove the machine of a study that has ended, unless it is kept, or another command is at it: one that followed
    the study as well, and does the same.
    """
    from taetpu.cloud import ssh
    from taetpu.cloud.reconcile import down
    from taetpu.cloud.state import Held

    if keep:
        tell(f"{stack} is kept for the rest of its time: `taetpu tpu down {stack}` removes it")
        return
    try:
        down(place.cloud, stack)
        ssh.forget(stack)
    except Held as other:
        tell(f"{other.problem}: its deletion is left to that one, `taetpu tpu list` shows what is there")


def _root(place: Here, root: str | None) -> str:
    """The address of the study root in the bucket: `--root`, the environment's if that is one, else the settings'.

    Raises:
        UserError: there is none.
    """
    from taetpu.core.errors import UserError

    named = root or os.environ.get("TAETPU_ROOT", "")
    if named.startswith("gs://"):
        return named
    if root:
        problem = f"a machine that goes cannot keep results at {root!r}"
        raise UserError(problem, path=("--root",), remedy="--root gs://BUCKET/FOLDER, or `bucket` in taetpu.toml")
    if not place.settings.bucket:
        problem = "no bucket is named, and results cannot stay on a machine that goes"
        raise UserError(problem, remedy="`taetpu bucket create NAME --write`, or --root gs://BUCKET/FOLDER")
    return f"gs://{place.settings.bucket}/studies"


def _fetch(store: "Store", name: str, as_json: bool) -> None:
    """Bring a study's results and report here; what they say has been in its log."""
    from taetpu.store.backend import open_store
    from taetpu.store.study import StudyFolder

    local = open_store("cloud")
    for key in store.list(name):
        below = key.removeprefix(f"{name}/")
        if below.startswith(FETCHED):
            local.write(key, store.read(key), replace=True)
    if local.exists(f"{name}/report/index.html"):
        tell(f"report, here: {local.where(f'{name}/report/index.html')}")
    if as_json and (results := StudyFolder(store, name).read_results()):
        show_json(results)
