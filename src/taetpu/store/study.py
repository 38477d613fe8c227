"""The folder of one study: its specification, pack plan, packs, runs and results."""

import re
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from typing import Any

from taetpu.core.errors import UserError
from taetpu.store.backend import Store
from taetpu.store.digests import Damaged, digest, seal, unseal
from taetpu.store.documents import finite, from_yaml, to_json, to_yaml
from taetpu.store.errors import NotStored, check_name
from taetpu.store.frozen_study import SearchStep
from taetpu.store.pack_checkpoints import PackFolder
from taetpu.store.pack_times import PackTime
from taetpu.store.runs import RunFolder
from taetpu.store.stored_costs import StoredCosts

_RUN = re.compile(r".*/runs/(?P<arm>[^/]+)/(?P<seed>\d+)-(?P<id>[0-9a-f]{8})/(?:config|result)\.json")
_DIGEST = re.compile(rb"# (sha256:[0-9a-f]{64})\n")


class StudyFolder:
    """A study's folder `<root>/<name>/` in a store. Creating the object stores nothing.

    Args:
        store: the store that contains the folder.
        name: the name of the study and its folder.

    Raises:
        UserError: if the name is not a valid folder name.
    """

    def __init__(self, store: Store, name: str):
        self.store, self.name = store, check_name(name, "study", ("study",))

    def __repr__(self) -> str:
        return f"StudyFolder({self.where!r})"

    @property
    def where(self) -> str:
        """The path or address of the folder, for display."""
        return self.store.where(self.name)

    def exists(self) -> bool:
        """Return whether a study is stored here."""
        return self.store.exists(f"{self.name}/study.yaml")

    def claim(self) -> AbstractContextManager[None]:
        """Hold the study exclusively during a `with` block. The claim is released if this process dies.

        Raises:
            ClaimHeld: if another process holds the study. The message describes that process.
        """
        return self.store.claim(f"{self.name}/lock")

    def claim_pack(self, pack_id: str) -> AbstractContextManager[None]:
        """Hold one pack exclusively, while other processes may train other packs of the study.

        Raises:
            ClaimHeld: if another process holds the pack.
        """
        return self.store.claim(f"{self.name}/claims/{pack_id}")

    def claimed_packs(self) -> list[str]:
        """Return the IDs of the packs for which a claim is stored. The process that held the claim may have ended."""
        return [key.rpartition("/")[2] for key in self.store.list(f"{self.name}/claims")]

    def delete_claims(self) -> None:
        """Delete all claims on packs. The caller must hold the study's claim, and all packs must be done."""
        self.store.delete(f"{self.name}/claims")

    # Specification and pack plan.

    def write_study(self, data: dict[str, Any], replace: bool = False) -> None:
        """Freeze the study by storing its plain data. Writing the same data again has no effect.

        Raises:
            UserError: if other data is stored and `replace` is False.
        """
        text = to_yaml(data)
        self.store.write(f"{self.name}/study.yaml", f"# {digest(text)}\n".encode() + text, replace=replace)

    def read_study(self) -> dict[str, Any]:
        """Return the plain data that `write_study` stored.

        Raises:
            NotStored: if no study is stored here.
            UserError: if the file is damaged or was edited.
        """
        key = f"{self.name}/study.yaml"
        try:
            data = self.store.read(key)
        except NotStored:
            remedy = "Run the study first, or pass another folder or --root. Run `taetpu list` to list studies."
            raise NotStored("no study is stored here", file=self.where, remedy=remedy) from None
        study = from_yaml(
            data, self.store.where(key), "Restore the file from a backup. It contains the frozen analysis plan."
        )
        stated = _DIGEST.match(data)
        if (stated is None and data[:1] == b"#") or (stated and stated[1].decode() != digest(data[stated.end() :])):
            problem, remedy = "the content of this file does not match its checksum", "Restore the file from a copy."
            raise Damaged(problem, file=self.store.where(key), remedy=remedy)
        return study

    def frozen_at(self) -> float:
        """Return the time at which the study was last frozen, in seconds since 1970.

        Raises:
            NotStored: if no study is stored here.
        """
        return self.store.modified(f"{self.name}/study.yaml")

    def analysed_at(self) -> float:
        """Return the time at which the results were last stored, in seconds since 1970; 0 without results."""
        key = f"{self.name}/results.json"
        return self.store.modified(key) if self.store.exists(key) else 0.0

    def write_plan(self, data: dict[str, Any]) -> None:
        """Store the pack plan, which assigns runs to packs. An earlier pack plan is replaced."""
        self._write("plan.json", data)

    def read_plan(self) -> Any | None:
        """Return the pack plan; None if no pack plan is stored."""
        return self._read("plan.json")

    def write_plugin(self, name: str, source: bytes) -> None:
        """Store the source code of a plug-in. Writing the same source again has no effect."""
        self.store.write(f"{self.name}/plugins/{name}", source)

    # Search.

    def add_search_step(self, number: int, step: SearchStep) -> None:
        """Append a decision to the record of a search. Writing the same decision again has no effect.

        Raises:
            UserError: if another decision is stored under this number.
        """
        self.store.write(f"{self.name}/search/{number:04d}.json", seal(dict(step)))

    def read_search(self) -> list[SearchStep]:
        """Return the decisions of a search, in order; none if the study was not searched."""
        return list(self._read_all("search").values())

    # Runs and packs.

    def run(self, arm: str, seed: int, run_id: str) -> RunFolder:
        """Return the folder of one run. The folder need not exist yet.

        Args:
            arm: the arm's name.
            seed: the seed, at least 0.
            run_id: the run's identity, a hexadecimal hash. The folder's name contains its first 8 characters.

        Raises:
            UserError: if the arm's name is not a valid folder name.
            ValueError: if the seed or the identity is invalid.
        """
        check_name(arm, "arm", ("arms", arm))
        if seed < 0 or not re.match("[0-9a-f]{8}", run_id):
            raise ValueError(f"invalid seed {seed} or run identity {run_id!r}")
        return RunFolder(self.store, self.name, arm, int(seed), run_id[:8])

    def runs(self) -> list[RunFolder]:
        """Return the folders of all runs that are started or done, sorted by arm and seed."""
        matches = map(_RUN.fullmatch, self.store.list(f"{self.name}/runs", depth=3))
        identities = {(m["arm"], int(m["seed"]), m["id"]) for m in matches if m}
        return [RunFolder(self.store, self.name, *names) for names in sorted(identities)]

    def pack(self, pack_id: str) -> PackFolder:
        """Return the folder of a pack's checkpoints. The folder need not exist yet."""
        return PackFolder(self.store, self.name, pack_id)

    def delete_pack(self, pack_id: str) -> None:
        """Delete a pack's checkpoints."""
        self.store.delete(f"{self.name}/packs/{pack_id}")

    # Profiles.

    def profile_key(self, pack_id: str, name: str) -> str:
        """Return the key of the folder of a pack's profiler trace."""
        return f"{self.name}/profile/{pack_id}/{name}"

    def write_profile(self, pack_id: str, name: str, summary: dict[str, Any], text: str) -> None:
        """Store the summary of a trace in the trace's folder, as JSON and as text.

        Raises:
            UserError: if a different summary is stored.
        """
        key = f"{self.profile_key(pack_id, name)}/summary"
        self.store.write(f"{key}.json", to_json(finite(summary)))
        self.store.write(f"{key}.txt", text.encode())

    # Results.

    def write_results(self, data: Mapping[str, Any]) -> None:
        """Store the results of the analysis, replacing earlier results. NaN and infinities become null.

        The results must not contain wall times; see `write_pack_time`.
        """
        self.store.write(f"{self.name}/results.json", to_json(finite(data)), replace=True)

    def read_results(self) -> dict[str, Any] | None:
        """Return the results of the analysis; None if no results are stored."""
        return self._read("results.json")

    def write_audit(self, data: dict[str, Any]) -> None:
        """Store the outcome of retraining reused runs. An earlier outcome is replaced."""
        self._write("audit.json", data)

    def read_audit(self) -> dict[str, Any] | None:
        """Return the outcome of retraining reused runs; None if no outcome is stored."""
        return self._read("audit.json")

    def write_repeat(self, data: dict[str, Any]) -> None:
        """Store the values of a baseline's run of a program that was repeated with the same seed."""
        self._write("repeat.json", data)

    def read_repeat(self) -> dict[str, Any] | None:
        """Return the values of the repeated run; None if none was repeated."""
        return self._read("repeat.json")

    def write_pack_time(self, pack_id: str, data: PackTime) -> None:
        """Store the wall time of a pack. Results do not contain wall times, since these depend on the machine."""
        self._write(f"times/{pack_id}.json", dict(data))

    def read_pack_time(self, pack_id: str) -> PackTime:
        """Return the wall time of a pack; empty if none is stored, or if the file is damaged."""
        with suppress(Damaged):
            return self._read(f"times/{pack_id}.json") or {}
        return {}

    def add_wait(self, name: str, seconds: float) -> None:
        """Add the time that a process waited between packs to that stored under `name`, which is no pack's ID.

        Errors of the store are ignored, because no result depends on times.
        """
        with suppress(UserError):
            known = self.read_pack_time(name).get("parts", {})
            self.write_pack_time(name, {"parts": {"waited": round(known.get("waited", 0.0) + seconds, 3)}})

    def read_pack_times(self) -> dict[str, PackTime]:
        """Return the wall times of all packs by pack ID, and the times that processes waited between packs.

        The file `times.json`, in which earlier versions stored the wall times of all packs, is read too.
        """
        return (self._read("times.json") or {}).get("packs", {}) | self._read_all("times")

    def write_costs(self, key: str, data: StoredCosts) -> None:
        """Store the costs that a machine or a compiler gave, replacing earlier ones with this key only."""
        self._write(f"costs/{key}.json", dict(data))

    def read_costs(self) -> dict[str, StoredCosts]:
        """Return the costs of each machine and compiler, by key."""
        return self._read_all("costs")

    def write_report(self, name: str, data: bytes) -> str:
        """Store one file of the report, replacing an earlier file of this name, and return its path or address."""
        key = f"{self.name}/report/{name}"
        self.store.write(key, data, replace=True)
        return self.store.where(key)

    def _write(self, name: str, data: dict[str, Any]) -> None:
        self.store.write(f"{self.name}/{name}", seal(finite(data)), replace=True)

    def _read(self, name: str) -> Any | None:
        key = f"{self.name}/{name}"
        try:
            data = self.store.read(key)
        except NotStored:
            return None
        return unseal(data, self.store.where(key))

    def _read_all(self, folder: str) -> dict[str, Any]:
        """Return the documents in a folder by name, in lexical order."""
        names = [key.removeprefix(f"{self.name}/") for key in sorted(self.store.list(f"{self.name}/{folder}"))]
        read = ((name[len(folder) + 1 : -len(".json")], self._read(name)) for name in names)
        return {name: document for name, document in read if document is not None}
