"""What a cloud says when it does not do what it is asked, sorted by what can be done about it."""

from collections.abc import Mapping
from typing import ClassVar

from taetpu.core.errors import UserError


class CloudError(UserError):
    """A request that Google's API refused, or that came to nothing.

    Attributes:
        elsewhere: another zone may grant it.
        again: the same request may be granted later.
        facts: what the API told with it, e.g. `{"quota_limit": "TPUV6EPerProjectPerZone"}`.
    """

    elsewhere: ClassVar[bool] = False
    again: ClassVar[bool] = False

    def __init__(self, problem: str, *, remedy: str | None = None, facts: Mapping[str, str] | None = None):
        super().__init__(problem, remedy=remedy)
        self.facts = dict(facts or {})


class Quota(CloudError):
    """The project may not have so much there. Another region has a quota of its own."""

    elsewhere = True


class Stockout(CloudError):
    """The zone has none left."""

    exit_code = 3
    elsewhere = True
    again = True


class Permission(CloudError):
    """The caller may not do it, or the API is not enabled."""


class Disabled(Permission):
    """The API is not enabled in the project, so that nothing of it is there."""


class NotFound(CloudError):
    """There is no such thing."""


class Conflict(CloudError):
    """The name is taken, or the thing is in a state that does not allow it."""


class Invalid(CloudError):
    """The request can be granted nowhere as it is."""


class NotOffered(Invalid):
    """The zone does not have it, or is closed to the project. Another zone may have it."""

    elsewhere = True


class Transient(CloudError):
    """The service could not answer just now, retries included."""

    exit_code = 3
    again = True


class Unknown(CloudError):
    """Nothing is known of how the request ended: it may have been granted. Look before asking again."""

    exit_code = 3


class BuildFailed(CloudError):
    """An image could not be built. Its log says why."""

    exit_code = 3
