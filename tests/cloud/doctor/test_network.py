"""The network: IAP comes in, the world does not, and machines without addresses reach what they need."""

import pytest

from taetpu.cloud.doctor import network
from taetpu.cloud.fakes.networks import IAP, rule
from taetpu.cloud.settings import Settings

MINE = Settings(project="fake-project", zones=("us-east5-b", "us-east5-a"))


def put(looked, *rules):
    looked.networks.firewalls = {one["name"]: one for one in rules}


def test_a_rule_for_iap_is_enough(looked):
    (check,) = network.firewall(looked.clients, MINE)
    assert (check.status, check.found) == ("ok", "allow-iap lets IAP's tunnels reach ssh")
    tagged = rule("mine", [IAP], "tcp:20-25") | {"targetTags": ["taetpu"]}
    put(looked, tagged)
    assert network.firewall(looked.clients, MINE)[0].found.endswith("(only to machines tagged taetpu)")
    account = "trainer@p.iam.gserviceaccount.com"
    put(looked, rule("account", [IAP]) | {"targetServiceAccounts": [account]})
    assert network.firewall(looked.clients, MINE.model_copy(update={"service_account": account}))[0].status == "ok"
    assert looked.world.changes() == []


@pytest.mark.parametrize(
    "other",
    [
        rule("web", [IAP], "tcp:80"),
        rule("udp", [IAP], "udp:22"),
        rule("office", ["203.0.113.0/24"]),
        rule("part", ["35.235.240.0/24"]),
        rule("off", [IAP]) | {"disabled": True},
        rule("out", [IAP]) | {"direction": "EGRESS"},
        rule("elsewhere", [IAP], network="other"),
        rule("six", ["2600::/8"]),
        rule("tagged", [IAP]) | {"targetTags": ["web"]},
        rule("somebody", [IAP]) | {"targetServiceAccounts": ["web@p.iam.gserviceaccount.com"]},
    ],
    ids=lambda one: one["name"],
)
def test_another_rule_does_not_let_iap_in(looked, other):
    put(looked, other)
    (check,) = network.firewall(looked.clients, MINE)
    assert (check.status, check.found) == ("fails", f"no rule of 'default' lets IAP ({IAP}) reach ssh")
    assert check.command == (
        "gcloud compute firewall-rules create taetpu-iap --project=fake-project --network=default "
        f"--direction=INGRESS --allow=tcp:22 --source-ranges={IAP} --target-tags=taetpu"
    )


@pytest.mark.parametrize(
    ("allowed", "source", "status", "what"),
    [
        ("tcp:22", "0.0.0.0/0", "warning", "ssh"),
        ("tcp", "::/0", "warning", "ssh"),
        ("all", "0.0.0.0/0", "fails", "everything"),
    ],
)
def test_a_door_open_to_the_world_is_told(looked, allowed, source, status, what):
    put(looked, rule("allow-iap", [IAP]), rule("wide", ["10.0.0.0/8", source], allowed))
    iap, opened = network.firewall(looked.clients, MINE)
    assert iap.status == "ok"
    assert (opened.status, opened.found) == (status, f"wide opens {what} to the whole internet")
    assert opened.command == "gcloud compute firewall-rules delete wide --project=fake-project"


def test_a_web_server_is_nobodys_concern_and_an_address_needs_no_iap(looked):
    put(looked, rule("web", ["0.0.0.0/0"], "tcp:443"))
    (check,) = network.firewall(looked.clients, Settings(project="fake-project", external_ip=True))
    assert (check.status, check.found) == ("ok", "nothing is open to everybody in 'default'")


def test_what_machines_without_addresses_reach(looked):
    (check,) = network.addresses(looked.clients, MINE)
    assert (check.status, check.found) == ("ok", "machines in us-east5 reach the internet through NAT")
    looked.networks.translated.clear()
    (check,) = network.addresses(looked.clients, MINE)
    assert check.status == "warning"
    assert check.found == "machines in us-east5 reach Google alone: pip and apt would wait in vain"
    assert (
        "gcloud compute routers nats create taetpu --router=taetpu --project=fake-project --region=us-east5"
        in check.command
    )
    looked.networks.reaches_google.clear()
    (check,) = network.addresses(looked.clients, MINE)
    assert (check.status, check.found) == ("fails", "machines in us-east5 reach neither Google's APIs nor buckets")
    assert check.command == (
        "gcloud compute networks subnets update default --project=fake-project --region=us-east5 "
        "--enable-private-ip-google-access"
    )


def test_a_region_without_a_subnetwork_fails(looked):
    (check,) = network.addresses(looked.clients, Settings(project="fake-project", region="asia-east1"))
    assert check.found == "network 'default' has no subnetwork in asia-east1, so no machine can be made there"
    named = Settings(project="fake-project", region="us-east5", subnetwork="mine")
    assert network.addresses(looked.clients, named)[0].found.startswith("mine has no subnetwork")


def test_addresses_of_their_own_and_no_region_need_no_question(looked):
    assert network.addresses(looked.clients, Settings(external_ip=True))[0].status == "ok"
    assert network.addresses(looked.clients, Settings())[0].status == "skipped"
    assert looked.world.calls == []
