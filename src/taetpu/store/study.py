"""The folder of one study: what was asked, the plan, the runs, and what came out."""

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
    """A study's folder `<root>/<name>/` in a store. Making one stores nothing.

    Args:
        store: what keeps it.
        name: the study's name, which is the folder's.

    Raises:
        UserError: the name cannot be a folder's.
    """

    def __init__(self, store: Store, name: str):
        self.store, self.name = store, check_name(name, "study", ("study",))

    @property
    def where(self) -> str:
        """The folder as a person would open it."""
        return self.store.where(self.name)

    def exists(self) -> bool:
        """Whether a study is stored here."""
        return self.store.exists(f"{self.name}/study.yaml")

    def claim(self) -> AbstractContextManager[None]:
        """Hold the study against other processes for a `with` block; freed when this process dies.

        Raises:
            UserError: another process holds it, with its pid, host and since when.
        """
        return self.store.claim(f"{self.name}/lock")

    def claim_pack(self, pack_id: str) -> AbstractContextManager[None]:
        """Hold one pack while it is trained, against other processes that train packs of the same study.

        Raises:
            ClaimHeld: another process holds it.
        """
        return self.store.claim(f"{self.name}/claims/{pack_id}")

    def claimed_packs(self) -> list[str]:
        """Return the packs that a process holds, or held when it was stopped."""
        return [key.rpartition("/")[2] for key in self.store.list(f"{self.name}/claims")]

    def delete_claims(self) -> None:
        """Delete the files of claims on packs. Only for the holder of the study's claim, when all packs are done."""
        self.store.delete(f"{self.name}/claims")

    # What was asked.

    def write_study(self, data: dict[str, Any], replace: bool = False) -> None:
        """Freeze the study as plain data. Again with the same data is fine.

        Raises:
            UserError: other data is stored here and `replace` is not set.
        """
        text = to_yaml(data)
        self.store.write(f"{self.name}/study.yaml", f"# {digest(text)}\n".encode() + text, replace=replace)

    def read_study(self) -> dict[str, Any]:
        """What `write_study` froze.

        Raises:
            NotStored: no study is stored here.
            UserError: the file is damaged, or was changed by hand.
        """
        key = f"{self.name}/study.yaml"
        try:
            data = self.store.read(key)
        except NotStored:
            remedy = "run the study first, or name another folder or --root; `taetpu list` shows what is there"
            raise NotStored("no study is stored here", file=self.where, remedy=remedy) from None
        found = from_yaml(data, self.store.where(key), "restore it from a copy: it holds the analysis plan")
        stated = _DIGEST.match(data)
        if (stated is None and data[:1] == b"#") or (stated and stated[1].decode() != digest(data[stated.end() :])):
            problem, remedy = "the content of this file does not match its checksum", "restore it from a copy"
            raise Damaged(problem, file=self.store.where(key), remedy=remedy)
        return found

    def frozen_at(self) -> float:
        """When what `read_study` gives was last written, in seconds since 1970. Raises `NotStored`."""
        return self.store.modified(f"{self.name}/study.yaml")

    def write_plan(self, data: dict[str, Any]) -> None:
        """Store how the runs are packed, in place of an earlier plan."""
        self._write("plan.json", data)

    def read_plan(self) -> Any | None:
        """What `write_plan` stored last, or None."""
        return self._read("plan.json")

    def write_plugin(self, name: str, source: bytes) -> None:
        """Keep a plug-in that the study was run with. Again with the same content is fine."""
        self.store.write(f"{self.name}/plugins/{name}", source)

    # The runs, and the packs that train them.

    def run(self, arm: str, seed: int, run_id: str) -> RunFolder:
        """The folder of one run, which need not exist yet.

        Args:
            arm: the arm's name.
            seed: at least 0.
            run_id: the run's identity, a hexadecimal hash; its first 8 characters name the folder.

        Raises:
            UserError: the arm's name cannot be a folder's.
            ValueError: the seed or the identity is not of that form.
        """
        check_name(arm, "arm", ("arms", arm))
        if seed < 0 or not re.match("[0-9a-f]{8}", run_id):
            raise ValueError(f"no run can have seed {seed} and identity {run_id!r}")
        return RunFolder(self.store, self.name, arm, int(seed), run_id[:8])

    def runs(self) -> list[RunFolder]:
        """Every run that was started, done or not, by arm and seed."""
        matches = map(_RUN.fullmatch, self.store.list(f"{self.name}/runs", depth=3))
        found = {(m["arm"], int(m["seed"]), m["id"]) for m in matches if m}
        return [RunFolder(self.store, self.name, *names) for names in sorted(found)]

    def pack(self, pack_id: str) -> PackFolder:
        """The state from which a pack resumes, which need not exist yet."""
        return PackFolder(self.store, self.name, pack_id)

    def delete_pack(self, pack_id: str) -> None:
        """Forget a pack's state, once its runs are done."""
        self.store.delete(f"{self.name}/packs/{pack_id}")

    def write_pack_mark(self, pack_id: str, data: dict[str, Any]) -> None:
        """Note something of a pack that is being trained, in place of an earlier mark."""
        self._write(f"packs/{pack_id}/begun.json", data)

    def read_pack_mark(self, pack_id: str) -> dict[str, Any] | None:
        """What `write_pack_mark` noted last, or None."""
        return self._read(f"packs/{pack_id}/begun.json")

    def write_pack_flags(self, pack_id: str, flags: dict[str, Any]) -> None:
        """Note the flags of XLA that a pack is begun with, in place of an earlier note."""
        self._write(f"packs/{pack_id}/flags.json", flags)

    def read_pack_flags(self, pack_id: str) -> dict[str, Any] | None:
        """What `write_pack_flags` noted, or None."""
        return self._read(f"packs/{pack_id}/flags.json")

    def delete_pack_mark(self, pack_id: str) -> None:
        """Forget what `write_pack_mark` noted."""
        self.store.delete(f"{self.name}/packs/{pack_id}/begun.json")

    # Where the time of a pack went.

    def has_profile(self, pack_id: str, name: str) -> bool:
        """Whether anything is stored of a pack's profile of this name."""
        return bool(self.store.list(f"{self.name}/profile/{pack_id}/{name}"))

    def profile_folder(self, pack_id: str, name: str) -> Path:
        """A local folder, created, for a trace."""
        return self.store.folder(f"{self.name}/profile/{pack_id}/{name}")

    def profile_where(self, pack_id: str, name: str) -> str:
        """The same folder as a person would open it, once it was kept."""
        return self.store.where(f"{self.name}/profile/{pack_id}/{name}")

    def save_profile(self, pack_id: str, name: str) -> None:
        """Keep the trace that lies in `profile_folder`."""
        self.store.save_folder(f"{self.name}/profile/{pack_id}/{name}")

    def write_profile(self, pack_id: str, name: str, summary: dict[str, Any], text: str) -> None:
        """Store what a trace came to, beside it. Raises `UserError` where another summary is stored."""
        key = f"{self.name}/profile/{pack_id}/{name}/summary"
        self.store.write(f"{key}.json", to_json(finite(summary)))
        self.store.write(f"{key}.txt", text.encode())

    # What came out.

    def write_results(self, data: dict[str, Any]) -> None:
        """Store the analysis, in place of an earlier one; NaN and infinities as null. Wall times go elsewhere."""
        self.store.write(f"{self.name}/results.json", to_json(finite(data)), replace=True)

    def read_results(self) -> dict[str, Any] | None:
        """What `write_results` stored last, or None."""
        return self._read("results.json")

    def write_audit(self, data: dict[str, Any]) -> None:
        """Store what came of training reused runs again, in place of an earlier audit."""
        self._write("audit.json", data)

    def read_audit(self) -> dict[str, Any] | None:
        """What `write_audit` stored last, or None."""
        return self._read("audit.json")

    def write_pack_time(self, pack_id: str, data: dict[str, Any]) -> None:
        """Store the wall time of a pack: apart from results, which do not depend on the machine."""
        self._write(f"times/{pack_id}.json", data)

    def read_pack_times(self) -> dict[str, dict[str, Any]]:
        """Read the wall times of all packs, by pack. Earlier versions kept them in one file, `times.json`."""
        earlier = (self._read("times.json") or {}).get("packs", {})
        names = [key.removeprefix(f"{self.name}/") for key in self.store.list(f"{self.name}/times")]
        return earlier | {name[6:-5]: found for name in names if (found := self._read(name)) is not None}

    def write_report(self, name: str, data: bytes) -> str:
        """Store one file of the report, in place of an earlier one, and say where it can be opened."""
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
