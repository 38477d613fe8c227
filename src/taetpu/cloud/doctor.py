"""Check the account, project, network and settings before a machine is created."""

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from taetpu.cloud.deletion_rights import check_can_delete_itself, default_account
from taetpu.cloud.gcloud import SIGN_IN, CloudError, NotAllowed, command, read
from taetpu.cloud.machine_api import TAG, Spec
from taetpu.cloud.settings import Settings
from taetpu.cloud.transfer import list_files
from taetpu.core.errors import UserError

Status = Literal["ok", "warning", "fails"]

APIS = ("tpu.googleapis.com", "compute.googleapis.com", "iap.googleapis.com")
IAP_RANGE = "35.235.240.0/20"
"""Range of source addresses that Identity-Aware Proxy uses: https://cloud.google.com/iap/docs/using-tcp-forwarding."""
KEY_BYTES = 100_000
"""Maximum size of files that are searched for keys. A key file has about 2.4 kB."""
SHARED = {"root", "ubuntu", "user", "admin", "jovyan", "vscode", "runner", "codespace", "nobody", "unknown"}


@dataclass(frozen=True)
class Check:
    """The result of a check.

    Attributes:
        found: result of the check, as text.
        remedy: command or step that fixes the problem; "" if no remedy is needed or known.
        regions: regions in which the check fails; empty for a check that does not depend on the region.
    """

    name: str
    status: Status
    found: str
    remedy: str = ""
    regions: tuple[str, ...] = ()


def run_checks(settings: Settings, folder: Path) -> Iterator[Check]:
    """Run all checks in order, and yield their results. If no project is set, checks that need Google are skipped."""
    yield from _local(settings, folder)
    if not settings.project:
        return
    for name, check in (
        ("account", check_account), ("apis", check_apis), ("network", check_firewall), ("egress", check_egress),
        ("service account", check_service_account), ("bucket", check_bucket),
        ("secrets and image", check_secrets_and_image),
    ):  # fmt: skip
        yield run_check(name, check, settings)


def run_check(name: str, check: Callable[[Settings], Check], settings: Settings) -> Check:
    """Run a check and return its result. The check fails if gcloud reports an error."""
    try:
        return check(settings)
    except CloudError as error:
        return Check(name, "fails", error.problem, error.remedy or "")


def _local(settings: Settings, folder: Path) -> Iterator[Check]:
    missing = [name for name in ("gcloud", "ssh", "ssh-keygen", "rsync") if not shutil.which(name)]
    remedy = "Install gcloud (https://cloud.google.com/sdk/docs/install), OpenSSH and rsync." if missing else ""
    yield Check(
        "programs", "fails" if missing else "ok", f"missing: {', '.join(missing)}" if missing else "installed", remedy
    )
    if settings.project:
        yield Check("project", "ok", settings.project)
    else:
        yield Check("project", "fails", "not set", 'Set `project = "ID"` below [cloud] in taetpu.toml.')
    shared = settings.owner in SHARED
    remedy = 'Set `owner = "YOUR-NAME"`, because others with this login can delete your machines.' if shared else ""
    yield Check("owner", "warning" if shared else "ok", settings.owner, remedy)
    yield key_files(folder)


def key_files(folder: Path) -> Check:
    """Check that neither a project file nor the file in GOOGLE_APPLICATION_CREDENTIALS is a service-account key."""
    named = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS", "")
    files = [named] if named and _is_key(Path(named)) else []
    files += [name for name in list_files(folder) if _is_key(folder / name)]
    if not files:
        return Check("keys", "ok", "no key file in the project; `gitleaks git` searches its history")
    keys = "gcloud iam service-accounts keys list --iam-account=ACCOUNT"
    remedy = (
        f"Delete the file and its key (`{keys}`), and sign in with `{SIGN_IN}`. Search the history with `gitleaks git`."
    )
    return Check("keys", "fails", f"{', '.join(files)}: key of a service account", remedy)


def _is_key(path: Path) -> bool:
    """Return whether a file contains the key of a service account, as JSON or in other text."""
    try:
        small = path.is_file() and path.stat().st_size <= KEY_BYTES
        text = path.read_text(encoding="utf-8", errors="replace") if small else ""
    except OSError:
        return False
    return "PRIVATE KEY" in text and bool(re.search(r"""["']?type["']?\s*[:=]\s*["']?service_account""", text))


def check_account(settings: Settings) -> Check:
    """Check that gcloud is signed in and that application-default credentials exist."""
    accounts = read(command("auth", "list", filter="status:ACTIVE")) or []
    if not accounts:
        return Check("account", "fails", "no account is signed in", SIGN_IN)
    read(command("projects", "describe", settings.project))
    try:
        import google.auth
        from google.auth.exceptions import DefaultCredentialsError
    except ModuleNotFoundError:
        return Check("account", "fails", "google-cloud-storage is not installed", "pip install 'taetpu[gcp]'")
    try:
        google.auth.default()
    except DefaultCredentialsError:
        return Check(
            "account", "fails", "no application-default credentials, which are needed to read the bucket", SIGN_IN
        )
    return Check("account", "ok", accounts[0]["account"])


def check_apis(settings: Settings) -> Check:
    """Check that the required APIs are enabled in the project."""
    listed = read(command("services", "list", enabled=True)) or []
    enabled = {service.get("config", {}).get("name") for service in listed}
    if missing := [api for api in APIS if api not in enabled]:
        line = command("services", "enable", *missing, project=settings.project)
        return Check("apis", "fails", f"disabled: {', '.join(missing)}", line.shown)
    return Check("apis", "ok", "enabled")


def check_firewall(settings: Settings) -> Check:
    """Check that the network allows ssh from Identity-Aware Proxy, but not from the whole internet."""
    if settings.external_ip:
        return Check("network", "warning", "machines get external addresses (external_ip)")
    listed = read(command("compute", "firewall-rules", "list")) or []
    rules = [
        rule for rule in listed
        if rule.get("network", "").endswith(f"/{settings.network}") and rule.get("direction") == "INGRESS"
        and not rule.get("disabled") and _opens_ssh(rule)
    ]  # fmt: skip
    world = [rule["name"] for rule in rules if "0.0.0.0/0" in rule.get("sourceRanges", ())]
    through_iap = any(IAP_RANGE in rule.get("sourceRanges", ()) for rule in rules)
    rule = {"network": settings.network, "allow": "tcp:22", "source_ranges": IAP_RANGE, "target_tags": TAG}
    line = command("compute", "firewall-rules", "create", "taetpu-iap", project=settings.project, **rule)
    if world:
        problem = f"ssh is open to the whole internet: {', '.join(world)}"
        close = command("compute", "firewall-rules", "delete", *world, project=settings.project).shown
        return Check("network", "warning", problem, close if through_iap else f"{line.shown} && {close}")
    if through_iap:
        return Check("network", "ok", f"ssh from Identity-Aware Proxy to {settings.network}")
    return Check(
        "network", "fails", f"no firewall rule allows ssh from Identity-Aware Proxy to {settings.network}", line.shown
    )


def check_egress(settings: Settings, zones: Iterable[str] = ()) -> Check:
    """Check that machines without an external address can reach Google, apt and PyPI.

    Cloud NAT gives access to all three. Private Google Access gives access only to Google.

    Args:
        settings: the cloud settings.
        zones: zones of the machines. Default: the zones in the settings.
    """
    if settings.external_ip:
        return Check("egress", "ok", "external addresses")
    regions = sorted({zone.rpartition("-")[0] for zone in zones or settings.zones}) or [settings.default_region]
    try:
        nat = {_region(router) for router in _in_network(settings, "routers") if router.get("nats")}
        closed = [region for region in regions if region not in nat]
        subnets = _in_network(settings, "networks", "subnets") if closed else []
    except NotAllowed as error:
        return Check("egress", "warning", f"cannot be checked: {error.problem.splitlines()[-1]}", error.remedy or "")
    if not closed:
        return Check("egress", "ok", f"Cloud NAT in {', '.join(regions)}")
    name = settings.subnetwork.rpartition("/")[2]
    private = {
        _region(subnet) for subnet in subnets if subnet.get("privateIpGoogleAccess") and name in ("", subnet["name"])
    }
    place = {"region": closed[0], "project": settings.project}
    words = ("compute", "routers", "nats", "create", "taetpu")
    line = command(*words, router="taetpu", auto_allocate_nat_external_ips=True, nat_all_subnet_ip_ranges=True, **place)
    router = command("compute", "routers", "create", "taetpu", network=settings.network, **place)
    remedy = f"{router.shown} && {line.shown}"
    if isolated := [region for region in closed if region not in private]:
        where = ", ".join(isolated)
        problem = f"no Cloud NAT and no Private Google Access in {where}, so a machine could not delete itself"
        return Check("egress", "fails", problem, remedy, tuple(isolated))
    return Check("egress", "warning", f"no Cloud NAT in {', '.join(closed)}, so apt and PyPI cannot be reached", remedy)


def _in_network(settings: Settings, *words: str) -> list[dict]:
    """Return the routers or subnetworks in the network that the settings name."""
    listed = read(command("compute", *words, "list")) or []
    return [resource for resource in listed if resource["network"].endswith(f"/{settings.network.rpartition('/')[2]}")]


def _region(resource: dict) -> str:
    return resource["region"].rpartition("/")[2]


def _opens_ssh(rule: dict) -> bool:
    tags = rule.get("targetTags")
    allowed = [protocol for protocol in rule.get("allowed", ()) if protocol.get("IPProtocol") in ("tcp", "all")]
    ports = [port for protocol in allowed for port in protocol.get("ports", ["22"])]
    return (not tags or TAG in tags) and any(_contains(port, 22) for port in ports)


def _contains(ports: str, port: int) -> bool:
    low, _, high = ports.partition("-")
    return int(low) <= port <= int(high or low)


def check_service_account(settings: Settings) -> Check:
    """Check that the machines' service account can delete queued resources."""
    from taetpu.core.chips import parse_slice

    account = settings.service_account or default_account(settings.project)
    spec = Spec("check", parse_slice("v5e-8"), "tpu-api", "", 1.0, "", service_account=settings.service_account)
    try:
        check_can_delete_itself(spec, settings.project)
    except UserError as error:
        return Check("service account", "fails", error.problem, error.remedy or "")
    return Check("service account", "ok", f"{account} can delete queued resources")


def check_secrets_and_image(settings: Settings) -> Check:
    """Check that the secrets and the image in the settings exist."""
    lines = [command("secrets", "describe", name) for name in settings.secret_names.values()]
    if settings.image:
        lines.append(command("artifacts", "docker", "images", "describe", settings.image))
    for line in lines:
        read(line)
    return Check("secrets and image", "ok", f"{len(lines)} found" if lines else "none set")


def check_bucket(settings: Settings) -> Check:
    """Check that the bucket exists, that machines can write to it, and that it is in the region of their zones."""
    from taetpu.cloud import bucket

    if (about := bucket.describe(settings.bucket)) is None:
        problem = f"the project has no bucket {settings.bucket}, which studies on TPUs need"
        return Check("bucket", "warning", problem, f"taetpu bucket create {settings.bucket}")
    region = about.get("location", "").lower()
    account = settings.service_account or default_account(settings.project)
    bindings = (read(bucket.policy_command(settings.bucket)) or {}).get("bindings", ())
    writers = {member for binding in bindings if binding["role"] in bucket.WRITERS for member in binding["members"]}
    if f"serviceAccount:{account}" not in writers:
        problem = f"{account} cannot write to {settings.bucket}"
        return Check("bucket", "warning", problem, bucket.grant_command(settings.bucket, account).shown)
    if apart := bucket.far_zones(region, settings.zones):
        problem = (
            f"{settings.bucket} is in {region}, but machines may be in {', '.join(apart)}, so transfers cost money"
        )
        return Check("bucket", "warning", problem)
    return Check("bucket", "ok", f"{settings.bucket} in {region}")
