"""What a stack should be: a TPU slice with everything that is made for it, under one name and one set of labels."""

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from taetpu.core.chips import Slice
from taetpu.core.errors import UserError

BackendName = Literal["gce", "tpu-api"]
Provisioning = Literal["on-demand", "spot", "flex-start", "reservation"]

OWNER, STACK, EXPIRES, SPEC = "taetpu-owner", "taetpu-stack", "taetpu-expires", "taetpu-spec"
"""Labels that everything carries that taetpu makes. What lacks `OWNER` is not ours and is never touched."""
LASTS = "taetpu-seconds"
"""Label of a machine: seconds after its start when it is deleted; `EXPIRES` counts the wait in a queue too."""
IDLE = "taetpu-idle"
"""Label of a machine: minutes without use after which it deletes itself; 0: never."""
STUDY = "taetpu-study"
"""Label of a machine that `taetpu run --on tpu` made: for which study. It alone may end it, make it anew, delete it."""
IMAGE = "taetpu-image"
"""Label of a machine whose jobs run in a container: which, see `image_label`."""
FLEX_START_WAITS = 2.0
"""Hours for which Compute Engine keeps a flex-start request of one host: the most that it takes, by a public field
report of July 2026."""
LONGEST = 48
"""Characters that a stack's name may have: parts of it and its hosts get longer ones."""
TAG = "taetpu"
"""The network tag of every machine, which the firewall's rule for ssh names."""


@dataclass(frozen=True)
class Spec:
    """What `up` brings about. Two specs with the same `fingerprint` are the same machine.

    Attributes:
        stack: the name of everything that is made.
        tpu: the slice.
        backend: Compute Engine or the Cloud TPU API.
        provisioning: how it is paid for and how long it may be kept.
        reservation: its name, with `provisioning` "reservation".
        hours: after which it is deleted, by the server where it can.
        idle_minutes: without a job, progress or login after which it deletes itself; None: never.
        owner: whose it is, a label.
        user: the login.
        runtime: the software version (tpu-api) or the image family (gce).
        disk_gb: of the boot disk, where it can be chosen.
        network, subnetwork: by name.
        external_ip: reachable from outside; else through IAP.
        service_account: the e-mail address that the machine acts as; "" for the project's default.
        image: of the container that jobs run in, `...@sha256:...`; "" for a virtual environment on the machine.
        study: that it is made for, a label; "": for whatever its user does.
    """

    stack: str
    tpu: Slice
    backend: BackendName
    provisioning: Provisioning = "on-demand"
    reservation: str = ""
    hours: float = 4.0
    idle_minutes: int | None = 30
    owner: str = ""
    user: str = "taetpu"
    runtime: str = ""
    disk_gb: int = 200
    network: str = "default"
    subnetwork: str = ""
    external_ip: bool = False
    service_account: str = ""
    image: str = ""
    study: str = ""

    def identity(self) -> dict[str, str | int | bool]:
        """What makes two machines different; how long one is kept and what for does not."""
        return {
            "type": self.tpu.name,
            "topology": self.tpu.topology_name,
            "backend": self.backend,
            "provisioning": self.provisioning,
            "reservation": self.reservation,
            "runtime": self.runtime,
            "disk_gb": self.disk_gb,
            "network": self.network,
            "subnetwork": self.subnetwork,
            "external_ip": self.external_ip,
            "service_account": self.service_account,
        }

    @property
    def queue_hours(self) -> float:
        """Hours for which its request may wait for capacity."""
        if self.backend == "tpu-api" or (self.provisioning == "flex-start" and self.tpu.hosts > 1):
            return self.hours
        return FLEX_START_WAITS if self.provisioning == "flex-start" else 0.0

    def labels(self, now: float | None = None) -> dict[str, str]:
        """The labels of everything that is made for the stack.

        The expiry, in seconds since 1970, is the latest end that it can have: after the longest wait.
        """
        expires = int((time.time() if now is None else now) + (self.queue_hours + self.hours) * 3600)
        labels = {OWNER: self.owner, STACK: self.stack, EXPIRES: str(expires), SPEC: fingerprint(self.identity())}
        labels |= {LASTS: f"{self.hours * 3600:.0f}", IDLE: str(self.idle_minutes or 0)}
        labels |= {STUDY: self.study} if self.study else {}
        return labels | ({IMAGE: image_label(self.image)} if self.image else {})

    def metadata(self, startup: str, ssh_key: str) -> dict[str, str]:
        """What every host is told: the script that it runs at each boot, and who may log in.

        Keys in metadata are ignored where OS Login is on for the project; a machine's own word goes before the
        project's. Where an organisation's policy insists on OS Login, such a machine is refused: before it costs
        anything. Source: https://cloud.google.com/compute/docs/oslogin/manage-oslogin-in-an-org
        """
        return {"startup-script": startup, "ssh-keys": f"{self.user}:{ssh_key}", "enable-oslogin": "FALSE"}


def fingerprint(identity: Mapping[str, str | int | bool]) -> str:
    """16 hexadecimal digits that differ where specs do."""
    import hashlib
    import json

    return hashlib.sha256(json.dumps(dict(identity), sort_keys=True).encode()).hexdigest()[:16]


def check_stack(name: str) -> str:
    """A name that both APIs take for a machine and as a label's value.

    Raises:
        UserError: it is none.
    """
    if re.fullmatch(r"[a-z]([a-z0-9-]{0,46}[a-z0-9])?", name):
        return name
    remedy = "a letter first, then lower-case letters, digits and hyphens, at most 48, as in `my-tpu`"
    raise UserError(f"{name!r} cannot be the name of a TPU", remedy=remedy)


def stack_of(owner: str, study: str = "") -> str:
    """The name of the TPU that an owner, or a study, has where none is given: `tpu-OWNER`, `tpu-OWNER-STUDY`. Where a
    name cannot have all of it, the end of a sum over the whole tells it from others."""
    whole = f"tpu-{owner}-{study}"
    plain = re.sub(r"[^a-z0-9]+", "-", whole.lower()).strip("-")
    if len(plain) <= LONGEST and plain.endswith(study):
        return check_stack(plain)
    return check_stack(f"{plain[: LONGEST - 7].rstrip('-')}-{_end(whole)}")


def check_reservation(name: str, backend: BackendName) -> str:
    """A reservation's name, or all of its address where it is another project's.

    Raises:
        UserError: it is none.
    """
    place = r"projects/[^/\s]+/" + ("" if backend == "gce" else r"locations/[a-z0-9-]+/") + "reservations/"
    if re.fullmatch(rf"({place})?[a-z]([a-z0-9-]{{0,61}}[a-z0-9])?", name):
        return name
    whole = "projects/PROJECT/reservations/NAME"
    whole = whole if backend == "gce" else whole.replace("/reserv", "/locations/ZONE/reserv")
    remedy = f"a letter first, then lower-case letters, digits and hyphens; or {whole}"
    raise UserError(f"{name!r} cannot be the name of a reservation", path=("--reservation",), remedy=remedy)


RUNTIMES = {
    "gce": ("an image family of Compute Engine", r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", r"ubuntu-accel-.*"),
    "tpu-api": (
        "a runtime version of the Cloud TPU API", r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?",
        r"v2-(alpha|nightly).*|tpu-(vm|ubuntu).*",
    ),
}  # fmt: skip
"""By backend: what a machine starts with, how its name is written, and names that no other backend has."""


def check_runtime(name: str, backend: BackendName) -> str:
    """What a machine starts with, as its backend names it.

    Raises:
        UserError: it is no name, or one of the other backend's.
    """
    what, written, _ = RUNTIMES[backend]
    other = next((one for one, (_, _, own) in RUNTIMES.items() if one != backend and re.fullmatch(own, name)), "")
    usual = "without --runtime it is what suits the TPU"
    if other:
        problem = f"{name!r} is {RUNTIMES[other][0]}, and {backend} starts {what}"
        raise UserError(problem, path=("--runtime",), remedy=f"--backend {other}, or {what}; {usual}")
    if re.fullmatch(written, name):
        return name
    remedy = f"a letter first, then lower-case letters, digits and hyphens; {usual}"
    raise UserError(f"{name!r} cannot be the name of {what}", path=("--runtime",), remedy=remedy)


def image_label(address: str) -> str:
    """What tells an image by a label: the beginning of its digest, else its tag. A label's value has 63 characters."""
    digest = address.rpartition("sha256:")[2] if "sha256:" in address else ""
    return digest[:32] or re.sub(r"[^a-z0-9_-]", "-", address.rpartition(":")[2].lower())[:63]


def label(text: str) -> str:
    """The text as a label's value: itself if it is one (lower-case letters, digits, `-` and `_`, at most 63), else what
    of it may be one and the end of a sum over the whole, which no other text has."""
    if re.fullmatch(r"[a-z0-9_-]{1,63}", text):
        return text
    plain = re.sub(r"[^a-z0-9_-]+", "-", text.lower())[:56].strip("-")
    return f"{plain}-{_end(text)}" if plain else f"x{_end(text)}"


def _end(whole: str) -> str:
    """Six hexadecimal digits that tell a text that cannot be a name from others."""
    import hashlib

    return hashlib.sha256(whole.encode(errors="surrogateescape")).hexdigest()[:6]
