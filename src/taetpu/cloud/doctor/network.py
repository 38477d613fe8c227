"""The network: who can reach machines, and what machines can reach."""

import ipaddress
from collections.abc import Iterable
from typing import Any

from taetpu.cloud.catalogue import region
from taetpu.cloud.clients import Clients
from taetpu.cloud.doctor.check import Check, fails, ok, skipped, warning
from taetpu.cloud.rest import answered, patience
from taetpu.cloud.settings import Settings
from taetpu.cloud.spec import TAG

IAP = "35.235.240.0/20"
"""Where the tunnels of Identity-Aware Proxy come from (Google's page "Using IAP for TCP forwarding")."""
EVERYWHERE = {"0.0.0.0/0", "::/0"}


def firewall(clients: Clients, settings: Settings) -> list[Check]:
    """Whether IAP's tunnels come in, and which rules let everybody in."""
    with answered("compute", "reading firewall rules"):
        found = list(clients.compute("Firewalls").list(project=clients.project, **patience()))
    rules = [rule for rule in found if _here(rule, settings) and rule.direction == "INGRESS" and not rule.disabled]
    told = [] if settings.external_ip else [_tunnels(clients.project, rules, settings)]
    opened = [one for rule in rules if (one := _opened(rule, clients.project))]
    return [*told, *opened] or [ok("firewall", f"nothing is open to everybody in {settings.network!r}")]


def _tunnels(project: str, rules: Iterable[Any], settings: Settings) -> Check:
    iap = ipaddress.ip_network(IAP)
    for rule in rules:
        ours = _for_ours(rule, settings)
        if ours and _lets_in(rule, 22) and any(_within(iap, source) for source in rule.source_ranges):
            only = f" (only to machines tagged {', '.join(rule.target_tags)})" if rule.target_tags else ""
            return ok("firewall", f"{rule.name} lets IAP's tunnels reach ssh{only}")
    command = (
        f"gcloud compute firewall-rules create taetpu-iap --project={project} --network={settings.network} "
        f"--direction=INGRESS --allow=tcp:22 --source-ranges={IAP} --target-tags={TAG}"
    )
    return fails("firewall", f"no rule of {settings.network!r} lets IAP ({IAP}) reach ssh", command=command)


def _for_ours(rule: Any, settings: Settings) -> bool:
    """Whether a rule is for our machines: for all, for those of our tag, or for those of their service account."""
    tagged = not rule.target_tags or TAG in rule.target_tags
    accounts = rule.target_service_accounts
    return tagged and (not accounts or settings.service_account in accounts)


def _opened(rule: Any, project: str) -> Check | None:
    """A rule that lets everybody reach ssh, or everything."""
    if not EVERYWHERE & set(rule.source_ranges) or not _lets_in(rule, 22):
        return None
    wide = any(allowed.I_p_protocol == "all" for allowed in rule.allowed)
    found = f"{rule.name} opens {'everything' if wide else 'ssh'} to the whole internet"
    command = f"gcloud compute firewall-rules delete {rule.name} --project={project}"
    remedy = f"with a rule for IAP ({IAP}) it is not needed"
    return (fails if wide else warning)("firewall", found, remedy, command)


def _lets_in(rule: Any, port: int) -> bool:
    """Whether a rule allows TCP to a port; without ports it allows them all."""
    for allowed in rule.allowed:
        if allowed.I_p_protocol == "all" or (allowed.I_p_protocol in ("tcp", "6") and not allowed.ports):
            return True
        ranges = [text.partition("-") for text in allowed.ports] if allowed.I_p_protocol in ("tcp", "6") else []
        if any(int(first) <= port <= int(last or first) for first, _, last in ranges):
            return True
    return False


def _within(inner: "ipaddress.IPv4Network | ipaddress.IPv6Network", outer: str) -> bool:
    network = ipaddress.ip_network(outer, strict=False)
    return isinstance(network, type(inner)) and inner.subnet_of(network)  # pyright: ignore[reportArgumentType]


def _here(thing: Any, settings: Settings) -> bool:
    """Whether it belongs to the settings' network."""
    return thing.network.rpartition("/")[2] == settings.network


def addresses(clients: Clients, settings: Settings) -> list[Check]:
    """Whether machines without an address of their own reach Google's APIs, and the internet."""
    if settings.external_ip:
        return [ok("addresses", "machines get addresses of their own")]
    regions = sorted({region(zone) for zone in settings.zones}) or ([settings.region] if settings.region else [])
    if not regions:
        return [skipped("addresses", "the settings name no zone or region to look in")]
    return [_outwards(clients, settings, one) for one in regions]


def _outwards(clients: Clients, settings: Settings, where: str) -> Check:
    """What machines in a region reach: Google by Private Google Access or NAT, the internet by NAT alone."""
    place = {"project": clients.project, "region": where}
    with answered("compute", "reading the network"):
        found = list(clients.compute("Subnetworks").list(**place, **patience()))
        routers = list(clients.compute("Routers").list(**place, **patience()))
    own = [s for s in found if _here(s, settings) and settings.subnetwork in ("", s.name)]
    nat = any(router.nats for router in routers if _here(router, settings))
    if not own:
        what = settings.subnetwork or f"network {settings.network!r}"
        remedy = "make one there, or name another network or zone in the settings"
        return fails("addresses", f"{what} has no subnetwork in {where}, so no machine can be made there", remedy)
    if nat:
        return ok("addresses", f"machines in {where} reach the internet through NAT")
    options = f"--project={clients.project} --region={where}"
    if not any(subnetwork.private_ip_google_access for subnetwork in own):
        command = f"gcloud compute networks subnets update {own[0].name} {options} --enable-private-ip-google-access"
        return fails("addresses", f"machines in {where} reach neither Google's APIs nor buckets", command=command)
    command = (
        f"gcloud compute routers create taetpu --network={settings.network} {options} && gcloud compute routers nats "
        f"create taetpu --router=taetpu {options} --auto-allocate-nat-external-ips --nat-all-subnet-ip-ranges"
    )
    remedy = "an image has all that jobs need; or let machines out through a NAT, which costs by the hour and GB"
    return warning(
        "addresses", f"machines in {where} reach Google alone: pip and apt would wait in vain", remedy, command
    )
