"""Google's errors by what can be done about them, with the words for it.

What the rules look for was seen in public reports of these APIs, as the tests cite them; where none was found the rule
is our reading of the documentation. A text that no rule knows is sorted by its code alone.
"""

import re
from dataclasses import dataclass
from typing import Any

from taetpu.cloud.catalogue import offer
from taetpu.cloud.clients import SIGN_IN
from taetpu.cloud.errors import (
    CloudError,
    Conflict,
    Disabled,
    Invalid,
    NotFound,
    NotOffered,
    Permission,
    Quota,
    Stockout,
    Transient,
    Unknown,
)
from taetpu.cloud.google_status import Told, told
from taetpu.core.chips import generations, resolve
from taetpu.core.errors import UserError, suggest

ROLES = {
    "tpu": "roles/tpu.admin",
    "compute": "roles/compute.instanceAdmin.v1",
    "compute.firewalls": "roles/compute.securityAdmin",
    "iam.serviceAccounts": "roles/iam.serviceAccountUser",
    "iap": "roles/iap.tunnelResourceAccessor",
    "storage": "roles/storage.admin",
    "artifactregistry": "roles/artifactregistry.admin",
    "cloudbuild": "roles/cloudbuild.builds.editor",
    "cloudquotas": "roles/cloudquotas.viewer",
    "serviceusage": "roles/serviceusage.serviceUsageConsumer",
    "resourcemanager": "roles/browser",
}
"""By the beginning of a permission's name, the longest that fits: a predefined role that has it."""

OUT = re.compile(
    r"no more capacity|not have enough resources|instance is currently unavailable|insufficient (reserved )?capacity"
    r"|out of capacity|stock ?out|resource pool exhausted|in state PREEMPTED|preempted (during|while)",
    re.I,
)
OUT_REASONS = {
    "ZONE_RESOURCE_POOL_EXHAUSTED", "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "RESOURCE_POOL_EXHAUSTED",
    "insufficientCapacity", "resource_availability", "STOCKOUT",
}  # fmt: skip
QUOTA_REASONS = {"QUOTA_EXCEEDED", "quotaExceeded", "RESOURCE_QUOTA_EXCEEDED", "QuotaFailure"}
RATE_REASONS = {"rateLimitExceeded", "userRateLimitExceeded", "RESOURCE_OPERATION_RATE_EXCEEDED"}
RATE = re.compile(r"per ?(minute|second|hour|day|100 ?seconds)|too many requests|rate ?limit|rate exceeded", re.I)
DISABLED = re.compile(r"has not been used in project|is disabled|API .*not enabled|access not configured", re.I)
CLOSED = re.compile(r"Permission denied on '?locations/|is not found or access is unauthorized", re.I)
NO_ZONE = re.compile(
    r"(?:requested zone \"|zones/|locations/|Location |Unknown zone[ :']*)([a-z]+-[a-z]+\d[\w-]*)", re.I
)
NO_TYPE = re.compile(
    r"accelerator type,? \\?\"?([\w-]+)|accelerator ([\w-]+) was not found|[Mm]achine type with name '([\w-]+)'"
    r"|machineTypes/([\w-]+)"
)
BY_NAME: dict[str, type[CloudError]] = {
    "RESOURCE_NOT_FOUND": NotFound, "notFound": NotFound,
    "RESOURCE_ALREADY_EXISTS": Conflict, "alreadyExists": Conflict, "RESOURCE_NOT_READY": Conflict,
    "resourceNotReady": Conflict, "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE": Conflict,
    "resourceInUseByAnotherResource": Conflict, "UNSUPPORTED_OPERATION": Conflict,
    "PERMISSIONS_ERROR": Permission, "forbidden": Permission, "CONDITION_NOT_MET": Permission,
    "INVALID_FIELD_VALUE": Invalid, "invalid": Invalid, "badRequest": Invalid, "INVALID_USAGE": Invalid,
    "INTERNAL_ERROR": Unknown, "backendError": Unknown,
}  # fmt: skip
"""Compute Engine's names: of operations, which have no code of google.rpc, and of refused requests."""
FIELDS = {
    "sourceimage": "--runtime, the name of an image family", "subnetwork": "`subnetwork` in taetpu.toml",
    "network": "`network` in taetpu.toml", "reservation": "--reservation", "serviceaccount": "`service_account` in "
    "taetpu.toml", "machinetype": "--type and --zone", "zone": "--zone, or `zones` in taetpu.toml",
    "region": "--region, or `region` in taetpu.toml", "labels": "`owner` in taetpu.toml",
}  # fmt: skip
"""What sets a field that Compute Engine refuses, by what stands in its name."""
BY_CODE: dict[int, type[CloudError]] = {
    1: Unknown, 2: Unknown, 3: Invalid, 4: Unknown, 5: NotFound, 6: Conflict, 7: Permission, 9: Conflict,
    10: Transient, 11: Invalid, 12: Invalid, 13: Unknown, 14: Transient, 15: Unknown, 16: Permission,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A failure with its circumstances; `reading` if the request was to change nothing."""

    told: Told
    zone: str
    doing: str
    reading: bool

    def has(self, names: set[str]) -> bool:
        return bool(self.told.reasons & names)

    def error(self, kind: type[CloudError], gist: str, remedy: str | None = None, **facts: str) -> CloudError:
        """The error in words: what was being done, what is the matter, and Google's own words after it."""
        where = f" in {self.zone}" if self.zone and self.zone not in self.doing else ""
        begin = f"{self.doing}{where}: " if self.doing else (f"{self.zone}: " if self.zone else "")
        words = " ".join(self.told.message.split())
        if words and gist:
            words = f" ({words})"
        return kind(f"{begin}{gist}{words}", remedy=remedy, facts={**self.told.facts, **facts})


def classify(error: Any, zone: str = "", doing: str = "", *, reading: bool = False) -> CloudError:
    """The error as one of ours.

    Args:
        error: see `google_status.told`; one of ours comes back as it is.
        zone: where it was asked for.
        doing: what was asked for, as in "creating my-tpu".
        reading: the request changes nothing, so that an answer that was lost is no more than that.
    """
    if isinstance(error, CloudError):
        return error
    case = Case(told(error), zone, doing, reading)
    for rule in (_signed_out, _unsent, _cut, _disabled, _elsewhere, _exhausted, _denied):
        if found := rule(case):
            return found
    return _by_code(case)


def _signed_out(case: Case) -> CloudError | None:
    scope = case.has({"ACCESS_TOKEN_SCOPE_INSUFFICIENT"}) or "insufficient authentication scopes" in case.told.message
    if scope:
        remedy = f"`{SIGN_IN}`; on a machine of Google's, give it the scope `cloud-platform`"
        return case.error(Permission, "the credentials were not given the scope for this", remedy)
    if case.told.signed_out or case.told.code == 16:
        return case.error(Permission, "the sign-in to Google Cloud has expired or is not valid", f"`{SIGN_IN}`")
    return None


def _unsent(case: Case) -> CloudError | None:
    if not case.told.unsent:
        return None
    remedy = "see to the connection, then give the same command again"
    return case.error(Transient, "Google does not answer", remedy)


def _cut(case: Case) -> CloudError | None:
    if not case.told.cut:
        return None
    if case.reading:
        return case.error(Transient, "no answer came", "try again")
    remedy = "give the same command again: it looks first whether it was done"
    return case.error(Unknown, "no answer came, so it may have been done or not", remedy)


def _disabled(case: Case) -> CloudError | None:
    """The API or the project's billing is off."""
    facts, message = case.told.facts, case.told.message
    if case.has({"BILLING_DISABLED"}) or re.search(r"billing .*(disabled|not enabled|to be enabled)", message, re.I):
        remedy = "link a billing account: https://console.cloud.google.com/billing/linkedaccount"
        return case.error(Permission, "the project has no billing account that is open", remedy)
    if re.search(r"free[- ]trial billing", message, re.I):
        remedy = "upgrade it to a paid account: https://console.cloud.google.com/billing"
        return case.error(Permission, "the project is paid for by a free trial, which has no TPUs", remedy)
    asked = case.told.code == 7 or case.has({"forbidden"})
    disabled = case.has({"SERVICE_DISABLED", "accessNotConfigured"}) or (asked and DISABLED.search(message))
    if not disabled:
        return None
    named = re.search(r"[\w-]+\.googleapis\.com", message.replace("console.developers.google.com", ""))
    api = facts.get("service") or (named.group(0) if named else "of this request")
    consumer = re.search(r"in project ([\w:.-]+)", message)
    project = facts.get("consumer", "").removeprefix("projects/") or (consumer.group(1) if consumer else "PROJECT")
    remedy = f"`gcloud services enable {api} --project={project}`, and wait a minute"
    return case.error(Disabled, f"the API {api} is not enabled in project {project}", remedy)


def _elsewhere(case: Case) -> CloudError | None:
    """The zone does not exist, is closed to the project, or does not have the slice."""
    message = case.told.message
    denied = case.has({"LOCATION_POLICY_VIOLATED", "LOCATION_ACCESS_DENIED"}) or bool(CLOSED.search(message))
    no_zone = denied or re.search(
        r"requested zone .* is not supported|Unknown zone|zones/[\w-]+' was not found", message
    )
    no_type = re.search(r"was not found in zone|zonal accelerator configurations|does not exist in zone", message)
    way = re.search(r"(\w+) provisioning model is not supported", message)
    no_machine = "machineType" in message and "does not exist" in message
    if no_type or way or no_machine:
        return _not_there(case, way.group(1) if way else "")
    if not no_zone:
        return None
    named = NO_ZONE.search(message)
    zone = case.told.facts.get("location") or (named.group(1) if named else case.zone)
    known = {zone for chip in generations() for zone in offer(chip.slices()[0]).zones}
    if zone in known:
        remedy = "another zone; some are only open to projects that Google has let in"
        return case.error(NotOffered, f"{zone} is closed to this project", remedy, zone=zone)
    return case.error(Invalid, f"{zone!r} is no zone that this project may use", suggest(zone, known), zone=zone)


def _not_there(case: Case, way: str) -> CloudError:
    """The zone does not have the slice, or not in this way of paying for it; the remedy names where it is."""
    named = NO_TYPE.search(case.told.message)
    kind = next((group for group in named.groups() if group), "") if named else ""
    place = case.zone or "the zone"
    if way:
        name = way.lower().replace("_", "-")
        return case.error(NotOffered, f"{place} has no {name} for {kind or 'it'}", "another zone, or --spot")
    try:
        zones = offer(resolve(kind)).zones
    except UserError as error:  # of a machine type nothing is known here
        if re.fullmatch(r"c[ta]\w*-.*|tpu7x-\w+-\w+", kind):
            return case.error(NotOffered, f"{place} has no {kind}", "`taetpu tpu zones` shows where it is listed")
        return case.error(Invalid, f"there is no accelerator {kind!r}", error.remedy)
    return case.error(
        NotOffered, f"{place} has no {kind}", f"it is listed in {', '.join(sorted(set(zones) - {place}))}"
    )


def _exhausted(case: Case) -> CloudError | None:
    """RESOURCE_EXHAUSTED is a rate limit, a quota or a stockout: told apart by its details, then by its words."""
    message, limit = case.told.message, case.told.facts.get("quota_limit", "")
    names = case.told.reasons
    if not (case.told.code == 8 or names & (OUT_REASONS | QUOTA_REASONS | RATE_REASONS) or OUT.search(message)):
        return None
    if names & OUT_REASONS or (OUT.search(message) and not limit):
        remedy = "another zone, a smaller slice, another kind (--spot, --flex-start), or later"
        return case.error(Stockout, f"{case.zone or 'the zone'} has none left", remedy)
    unit = case.told.facts.get("quota_unit", "")
    rate = (
        names & RATE_REASONS or RATE.search(f"{re.sub(r'(?<=[a-z])(?=[A-Z])', ' ', limit)} {message}") or "/min" in unit
    )
    if rate:
        return case.error(
            Transient, "too many requests in a short time", "wait a minute and give the same command again"
        )
    if limit or names & QUOTA_REASONS or "RATE_LIMIT_EXCEEDED" in names or re.search("quota", message, re.I):
        return _quota(case, limit)
    if case.reading:
        return case.error(Transient, "the service has no room for the question", "try again")
    return case.error(Stockout, f"{case.zone or 'the zone'} has none left, or the quota is used up", "another zone")


def _quota(case: Case, limit: str) -> CloudError:
    words = re.search(r"[Qq]uota (?:limit )?'([\w-]+)'", case.told.message)
    limit = limit or (words.group(1) if words else "")
    remedy = f"ask for more{f' of {limit}' if limit else ''} in the console (IAM & Admin > Quotas), or another region"
    facts = {"quota_limit": limit}
    if "PerZone" in limit or re.search(r"Limit:? [\d.]+ in zone", case.told.message):
        facts["region"] = ""  # of this zone alone: others of its region may have some
        remedy = remedy.replace("another region", "another zone")
    return case.error(Quota, f"the project's quota {limit or 'for it'} is used up", remedy, **facts)


def _denied(case: Case) -> CloudError | None:
    policy = re.search(r"constraints/[\w.]+", case.told.message)
    if policy:
        remedy = "ask whoever administers the organisation, or ask for it in a way that the policy allows"
        if "requireOsLogin" in policy.group(0):
            remedy = "taetpu logs in by a key of its own, which OS Login does not know: ask for an exception to it"
        return case.error(Permission, f"the organisation's policy {policy.group(0)} forbids it", remedy)
    if case.told.code != 7 and not case.has({"PERMISSIONS_ERROR", "forbidden", "CONDITION_NOT_MET"}):
        return None
    found = re.search(
        r"[Pp]ermission '?([a-z][\w]*(?:\.\w+)+)'?|'?([a-z]\w*(?:\.\w+){2,})'? permission", case.told.message
    )
    permission = case.told.facts.get("permission") or (found and (found.group(1) or found.group(2))) or ""
    if not permission:
        return case.error(Permission, "it is not allowed", "`taetpu doctor` shows which roles are missing")
    fits = [prefix for prefix in ROLES if permission.startswith(f"{prefix}.")]
    role = ROLES[max(fits, key=len)] if fits else "a role that has it"
    remedy = f"ask an owner of the project to grant you {role}; `taetpu doctor` shows which roles are missing"
    return case.error(Permission, f"the permission {permission} is missing", remedy, permission=permission)


def _by_code(case: Case) -> CloudError:
    """By Compute Engine's name for it, which says more than its code (what is in use is a 400), or by its code."""
    named = [BY_NAME[name] for name in sorted(case.told.reasons) if name in BY_NAME]
    kind = named[0] if named else BY_CODE.get(case.told.code, Unknown)
    if case.reading and kind is Unknown:
        kind = Transient
    if kind is Invalid and (found := re.search(r"[Rr]untime ?[Vv]ersion,? \\?[\"']?([\w.-]+)", case.told.message)):
        known = [chip.runtime for chip in generations() if chip.runtime]
        return case.error(Invalid, f"there is no runtime version {found.group(1)!r}", suggest(found.group(1), known))
    if kind is Invalid and (found := re.search(r"[Ii]nvalid value for field:? '([^']+)'", case.told.message)):
        sets = next((what for name, what in FIELDS.items() if name in found[1].lower()), "")
        remedy = (
            f"see to {sets}" if sets else "see to the option or setting that it is from; `taetpu doctor` looks at them"
        )
        return case.error(Invalid, "", remedy)
    remedies: dict[type[CloudError], str] = {
        Unknown: "give the same command again: it looks first whether it was done",
        Transient: "try again in a while",
    }
    return case.error(kind, "", remedies.get(kind))
