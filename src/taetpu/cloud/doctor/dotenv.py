"""Taking over the `.env` of the TAETPU shell scripts (PROJECT_ID, TPU_ZONE, ...), whose key file stays behind.

Their variables are known from the public repository totoberni/TAETPU: `source/.env` at first, `config/.env` later.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taetpu.cloud.clients import SIGN_IN
from taetpu.cloud.settings import Settings
from taetpu.cloud.spec import check_stack
from taetpu.core import disk
from taetpu.core.errors import UserError
from taetpu.core.loading import load

PLACES = (".env", "config/.env", "source/.env")
FIELDS = {
    "PROJECT_ID": "project",
    "TPU_ZONE": "zones",
    "TPU_REGION": "region",
    "BUCKET_REGION": "region",
    "TPU_NAME": "stack",
    "BUCKET_NAME": "bucket",
    "SERVICE_ACCOUNT_EMAIL": "service_account",
}
"""What has a setting of its own; of two for one setting the later one is taken."""
ELSEWHERE = {
    "TPU_TYPE": "said at the command: `taetpu tpu up --type {value}`",
    "RUNTIME_VERSION": "left to the chip; another: `taetpu tpu up --runtime {value}`",
    "CONTAINER_NAME": "not needed: containers are named after their jobs",
    "CONTAINER_TAG": "not needed: an image is named by what is in it",
    "HOST_SRC_DIR": "not needed: `taetpu tpu sync` has its place on the machine",
    "USE_NAMED_VOLUMES": "not needed: jobs see the folder that was synced",
    "VOLUME_PREFIX": "not needed: jobs see the folder that was synced",
    "TPU_DEBUG": "not needed: `taetpu run --dump` keeps the compiler's output",
    "XLA_USE_BF16": "left out: torch_xla dropped it; a study says its precision itself",
    "PJRT_DEVICE": "set where a job runs",
    "LIBTPU_INIT_ARGS": "left out: the scripts never read it; flags are given with `taetpu run --xla-flags`",
    "INSTALL_PYTORCH": "left out: the scripts never read it",
}
IMAGES = ("IMAGE_NAME", "DOCKER_IMAGE_PATH")
KEY = "SERVICE_ACCOUNT_JSON"
LINE = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)")


@dataclass(frozen=True)
class Taken:
    """What became of an old file: values of settings, and a sentence for every variable, by its name."""

    file: Path
    values: dict[str, Any]
    became: dict[str, str]


def find(folder: Path) -> Path | None:
    """The old file in a folder, where the scripts had it."""
    return next((folder / place for place in PLACES if (folder / place).is_file()), None)


def take(file: Path) -> Taken:
    """The settings that an old file comes to. A value that is not taken over is not repeated: it may be a secret.

    Raises:
        UserError: the file cannot be read.
    """
    variables, values, became = read(file), {}, {}
    for name, value in variables.items():
        if name == KEY:
            became[name] = _refused(file, value)
        elif name in FIELDS:
            became[name] = _field(FIELDS[name], name, value, variables, values)
        elif name in IMAGES:
            became[name] = _image(value, values)
        elif name in ELSEWHERE:
            became[name] = ELSEWHERE[name].format(value=value)
        elif name.startswith("DATASET"):
            became[name] = "said in a study's file, under `data`"
        else:
            became[name] = "left out: nothing here reads it"
    return Taken(file, values, became)


def read(file: Path) -> dict[str, str]:
    """The variables of a shell's file: `NAME=value`, quotes and comments taken off, `${NAME}` of before filled in."""
    with disk.explained("read", file):
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    found: dict[str, str] = {}
    for line in lines:
        match = LINE.fullmatch(line)
        if not match:
            continue
        name, text = match[1], match[2].strip()
        if text[:1] in ("'", '"') and (end := text.find(text[0], 1)) > 0:
            text = text[1:end]
        else:
            text = re.split(r"(?:^|\s)#", text)[0].strip()
        found[name] = re.sub(r"\$\{?(\w+)\}?", lambda one: found.get(one[1], ""), text)
    return found


def _field(field: str, name: str, value: str, variables: dict[str, str], values: dict[str, Any]) -> str:
    """Put a value into its setting, if it is one that the setting takes; what became of it."""
    if not value:
        return "left out: it is empty"
    other = variables.get("BUCKET_REGION") if name == "TPU_REGION" else None
    if other and other != value:
        return f"left out: the bucket is in {other}, and machines are where `zones` says"
    new: Any = [value] if field == "zones" else value.removeprefix("gs://").strip("/") if field == "bucket" else value
    try:
        load(Settings, {field: new})
        if field == "stack":
            check_stack(new)
    except UserError as error:
        return f"left out: {error.problem} ({error.remedy})"
    values[field] = new
    if field == "service_account":
        return f"service_account = {new}: machines act as it, without a key; give it no more roles than they need"
    return f"{field} = {new if isinstance(new, str) else ', '.join(new)}"


def _refused(file: Path, value: str) -> str:
    """The key file is not taken over; where it is, and how to be rid of it."""
    named = next((p for p in (file.parent / value, Path(value)) if value and p.is_file()), None)
    there = f" {named} is still there: `taetpu doctor` has the command that revokes it." if named else ""
    done = f"delete the file, revoke the key in IAM, and sign in: {SIGN_IN}"
    return f"refused, as keys of service accounts leak: {done}.{there}"


def _image(value: str, values: dict[str, Any]) -> str:
    """Images of Container Registry cannot be pushed any more since 2025-03-18; one by its digest is kept."""
    if "@sha256:" in value and "-docker.pkg.dev/" in value:
        values["image"] = value
        return f"image = {value}"
    return "left out: `taetpu image build` makes one in Artifact Registry (Container Registry ended on 2025-03-18)"
