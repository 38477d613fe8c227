"""The folder of one study: its specification, plan, packs, runs and results."""

import re
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from taetpu.store.backend import Store
from taetpu.store.digests import Damaged, digest, seal, unseal
from taetpu.store.documents import finite, from_yaml, to_json, to_yaml
from taetpu.store.names import NotStored, check_name
from taetpu.store.packs import PackFolder
from taetpu.store.runs import RunFolder

_RUN = re.compile(r".*/runs/(?P<arm>[^/]+)/(?P<seed>\d+)-(?P<id>[0-9a-f]{8})/(?:config|result)\.json")
_DIGEST = re.compile(rb"# (sha256:[0-9a-f]{64})\n")


class StudyFolder:
    """A study's folder `<root>/<name>/` in a store. Creating the object stores nothing.

    Args:
        store: the store that contains the folder.
        name: the name of the study and its folder.

    Raises:
        UserError: the name is not a valid folder name.
    """

    def __init__(self, store: Store, name: str):
        self.store, self.name = store, check_name(name, "study", ("study",))

    @property
    def where(self) -> str:
        """The path or address of the folder, for people."""
        return self.store.where(self.name)

    def exists(self) -> bool:
        """Return whether a study is stored here."""
        return self.store.exists(f"{self.name}/study.yaml")

    def claim(self) -> AbstractContextManager[None]:
        """Hold the study exclusively during a `with` block; released when this process dies.

        Raises:
            ClaimHeld: another process holds it; the message describes the process.
        """
        return self.store.claim(f"{self.name}/lock")

    def claim_pack(self, pack_id: str) -> AbstractContextManager[None]:
        """Hold one pack exclusively, among the processes that train packs of the same study.

        Raises:
            ClaimHeld: another process holds it.
        """
        return self.store.claim(f"{self.name}/claims/{pack_id}")

    def claimed_packs(self) -> list[str]:
        """Return the packs that a process holds, or held when it was killed."""
        return [key.rpartition("/")[2] for key in self.store.list(f"{self.name}/claims")]

    def delete_claims(self) -> None:
        """Delete all claims on packs. Requires the study's claim, and that all packs are done."""
        self.store.delete(f"{self.name}/claims")

    # Specification and plan.

    def write_study(self, data: dict[str, Any], replace: bool = False) -> None:
        """Freeze the study as plain data. Writing the same data again has no effect.

        Raises:
            UserError: other data is stored, and `replace` is not set.
        """
        text = to_yaml(data)
        self.store.write(f"{self.name}/study.yaml", f"# {digest(text)}\n".encode() + text, replace=replace)

    def read_study(self) -> dict[str, Any]:
        """Return the study that `write_study` froze.

        Raises:
            NotStored: no study is stored here.
            UserError: the file is damaged or was edited.
        """
        key = f"{self.name}/study.yaml"
        try:
            data = self.store.read(key)
        except NotStored:
            remedy = "Run the study first, or name another folder or --root. `taetpu list` lists the studies."
            raise NotStored("no study is stored here", file=self.where, remedy=remedy) from None
        found = from_yaml(data, self.store.where(key), "Restore it from a copy, because it contains the analysis plan.")
        stated = _DIGEST.match(data)
        if (stated is None and data[:1] == b"#") or (stated and stated[1].decode() != digest(data[stated.end() :])):
            problem, remedy = "the content of this file does not match its checksum", "Restore it from a copy."
            raise Damaged(problem, file=self.store.where(key), remedy=remedy)
        return found

    def frozen_at(self) -> float:
        """Return when the study was last frozen, in seconds since 1970.

        Raises:
            NotStored: no study is stored here.
        """
        return self.store.modified(f"{self.name}/study.yaml")

    def write_plan(self, data: dict[str, Any]) -> None:
        """Store how the runs are packed, replacing an earlier plan."""
        self._write("plan.json", data)

    def read_plan(self) -> Any | None:
        """Return the plan; None if there is none."""
        return self._read("plan.json")

    def write_plugin(self, name: str, source: bytes) -> None:
        """Store a plug-in's source. Writing the same source again has no effect."""
        self.store.write(f"{self.name}/plugins/{name}", source)

    # Runs and packs.

    def run(self, arm: str, seed: int, run_id: str) -> RunFolder:
        """Return the folder of one run, which need not exist yet.

        Args:
            arm: the arm's name.
            seed: at least 0.
            run_id: the run's identity, a hexadecimal hash, whose first 8 characters are part of the folder's name.

        Raises:
            UserError: the arm's name is not a valid folder name.
            ValueError: the seed or the identity is invalid.
        """
        check_name(arm, "arm", ("arms", arm))
        if seed < 0 or not re.match("[0-9a-f]{8}", run_id):
            raise ValueError(f"invalid seed {seed} or run identity {run_id!r}")
        return RunFolder(self.store, self.name, arm, int(seed), run_id[:8])

    def runs(self) -> list[RunFolder]:
        """Return every run that was started or is done, sorted by arm and seed."""
        matches = map(_RUN.fullmatch, self.store.list(f"{self.name}/runs", depth=3))
        found = {(m["arm"], int(m["seed"]), m["id"]) for m in matches if m}
        return [RunFolder(self.store, self.name, *names) for names in sorted(found)]

    def pack(self, pack_id: str) -> PackFolder:
        """Return the folder of a pack's checkpoints, which need not exist yet."""
        return PackFolder(self.store, self.name, pack_id)

    def delete_pack(self, pack_id: str) -> None:
        """Delete a pack's checkpoints and notes."""
        self.store.delete(f"{self.name}/packs/{pack_id}")

    def write_pack_mark(self, pack_id: str, data: dict[str, Any]) -> None:
        """Store a mark for a pack that is being trained, replacing an earlier one."""
        self._write(f"packs/{pack_id}/begun.json", data)

    def read_pack_mark(self, pack_id: str) -> dict[str, Any] | None:
        """Return the pack's mark; None if there is none."""
        return self._read(f"packs/{pack_id}/begun.json")

    def write_pack_flags(self, pack_id: str, flags: dict[str, Any]) -> None:
        """Store the XLA flags that a pack starts with, replacing earlier ones."""
        self._write(f"packs/{pack_id}/flags.json", flags)

    def read_pack_flags(self, pack_id: str) -> dict[str, Any] | None:
        """Return the XLA flags that the pack started with; None if none are stored."""
        return self._read(f"packs/{pack_id}/flags.json")

    def delete_pack_mark(self, pack_id: str) -> None:
        """Delete the pack's mark."""
        self.store.delete(f"{self.name}/packs/{pack_id}/begun.json")

    # Profiles.

    def has_profile(self, pack_id: str, name: str) -> bool:
        """Return whether any file of a pack's profile is stored."""
        return bool(self.store.list(f"{self.name}/profile/{pack_id}/{name}"))

    def profile_folder(self, pack_id: str, name: str) -> Path:
        """Create and return a local folder for a trace."""
        return self.store.folder(f"{self.name}/profile/{pack_id}/{name}")

    def profile_where(self, pack_id: str, name: str) -> str:
        """Return the path or address of a stored trace, for people."""
        return self.store.where(f"{self.name}/profile/{pack_id}/{name}")

    def save_profile(self, pack_id: str, name: str) -> None:
        """Store the trace that was written to `profile_folder`."""
        self.store.save_folder(f"{self.name}/profile/{pack_id}/{name}")

    def write_profile(self, pack_id: str, name: str, summary: dict[str, Any], text: str) -> None:
        """Store the summary of a trace next to it.

        Raises:
            UserError: another summary is stored.
        """
        key = f"{self.name}/profile/{pack_id}/{name}/summary"
        self.store.write(f"{key}.json", to_json(finite(summary)))
        self.store.write(f"{key}.txt", text.encode())

    # Results.

    def write_results(self, data: dict[str, Any]) -> None:
        """Store the analysis without wall times, replacing an earlier one. NaN and infinities become null."""
        self.store.write(f"{self.name}/results.json", to_json(finite(data)), replace=True)

    def read_results(self) -> dict[str, Any] | None:
        """Return the analysis; None if there is none."""
        return self._read("results.json")

    def write_audit(self, data: dict[str, Any]) -> None:
        """Store the outcome of retraining reused runs, replacing an earlier one."""
        self._write("audit.json", data)

    def read_audit(self) -> dict[str, Any] | None:
        """Return the outcome of retraining reused runs; None if there is none."""
        return self._read("audit.json")

    def write_pack_time(self, pack_id: str, data: dict[str, Any]) -> None:
        """Store the wall time of a pack, separately from the results, which do not depend on the machine."""
        self._write(f"times/{pack_id}.json", data)

    def read_pack_times(self) -> dict[str, dict[str, Any]]:
        """Return the wall times of all packs, by pack. Earlier versions stored them in one file, `times.json`."""
        earlier = (self._read("times.json") or {}).get("packs", {})
        names = [key.removeprefix(f"{self.name}/") for key in self.store.list(f"{self.name}/times")]
        return earlier | {name[6:-5]: found for name in names if (found := self._read(name)) is not None}

    def write_report(self, name: str, data: bytes) -> str:
        """Store one file of the report, replacing an earlier one, and return its path or address."""
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
