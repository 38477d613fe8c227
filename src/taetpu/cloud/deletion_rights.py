"""Whether the service account of a machine may delete the machine, and how to allow it."""

from collections.abc import Iterable

from taetpu.cloud.gcloud import Command, NotAllowed, command, read
from taetpu.cloud.machine_api import Spec

DELETERS = ("roles/tpu.admin", "roles/editor", "roles/owner")
"""Predefined roles with the permission to delete a queued resource."""


def check_can_delete_itself(spec: Spec, project: str) -> None:
    """Raise an error if the service account of a TPU API machine cannot delete the machine.

    Such a machine is reliably deleted only if it deletes itself.

    Raises:
        NotAllowed: if the account lacks the role, or the project's policy cannot be read.
    """
    if spec.api != "tpu-api":
        return
    account = spec.service_account or default_account(project)
    bindings = [row["bindings"] for row in read(policy_command(project, account)) or []]
    roles = [binding["role"] for binding in bindings if "condition" not in binding]  # a condition may be false later
    granted = any("tpu.queuedResources.delete" in role_permissions(role) for role in roles)
    if granted or any(role in DELETERS for role in roles):
        return
    problem = f"{account} cannot delete queued resources, so {spec.name} could not delete itself at the end of its time"
    unseen = "Roles with a condition, or of a folder or the organisation, do not count."
    raise NotAllowed(problem, remedy=f"Grant a role with `{grant_command(project, account).shown}`. {unseen}")


def policy_command(project: str, account: str) -> Command:
    """Return the command that reads the roles of a service account in a project."""
    member = f"bindings.members=serviceAccount:{account}"
    return command("projects", "get-iam-policy", project, flatten="bindings[].members", filter=member)


def grant_command(project: str, account: str) -> Command:
    """Return the command that lets a service account delete TPUs."""
    return command("projects", "add-iam-policy-binding", project, member=f"serviceAccount:{account}", role=DELETERS[0])


def role_permissions(role: str) -> Iterable[str]:
    """Return the permissions of a custom role. For a predefined role, the result is empty (see `DELETERS`)."""
    parts = role.split("/")
    if len(parts) != 4:
        return ()
    place = {parts[0].removesuffix("s"): parts[1]}
    return (read(command("iam", "roles", "describe", parts[3], **place)) or {}).get("includedPermissions", ())


def default_account(project: str) -> str:
    """Return the project's default service account."""
    number = read(command("projects", "describe", project))["projectNumber"]
    return f"{number}-compute@developer.gserviceaccount.com"
