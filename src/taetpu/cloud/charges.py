"""What a build and what is kept cost, in USD, by Google's price pages; no API that we ask tells it.

We have these pages as copies alone, and a copy may be older than the day it was seen: the sentences say so.
"""

SEEN = "2026-11-22"
"""The day on which the copies were looked at."""

BUILD_MINUTE, FREE_MINUTES = 0.006, 2500
"""Of Cloud Build's default machine (e2-standard-2), and how many a month are free for a billing account.
https://cloud.google.com/build/pricing, a copy of 2025-08-25."""

IMAGES, FREE_GB = 0.10, 0.5
"""Artifact Registry, a GB and month past the first half of a billing account, the same in every region.
https://cloud.google.com/artifact-registry/pricing, copies without a day."""

STANDARD = {
    "us-central1": 0.020, "us-east1": 0.020, "us-east4": 0.023, "us-east5": 0.020, "us-south1": 0.020,
    "us-west1": 0.020, "us-west2": 0.023, "us-west3": 0.023, "us-west4": 0.023, "europe-west1": 0.020,
}  # fmt: skip
"""Cloud Storage's standard class, a GB and month, where the copies show it: https://cloud.google.com/storage/pricing,
a copy without a day; us-central1's was there on 2026-09-20, too, as $0.000027397 a GiB and hour."""


def build(minutes: int) -> str:
    """What a build costs that is ended after so many minutes."""
    return (
        f"Cloud Build: ${BUILD_MINUTE:g} a minute once a month's {FREE_MINUTES:,} free ones are used up, so at most "
        f"${BUILD_MINUTE * minutes:.2f} in {minutes} min (a copy of Google's page of 2025-08-25)"
    )


def images() -> str:
    """What an image costs that lies in the registry."""
    return (
        f"Artifact Registry: ${IMAGES:.2f} a GB and month past {FREE_GB:g} GB, for as long as the image is kept "
        f"(a copy of Google's page seen {SEEN})"
    )


def bucket(region: str) -> str:
    """What it costs to keep something in a bucket."""
    usd = STANDARD.get(region)
    if usd is None:
        return f"no rate is known for storage in {region}: https://cloud.google.com/storage/pricing"
    return (
        f"empty it costs nothing; then ${usd:.3f} a GB and month, standard class, without requests and traffic "
        f"(a copy of Google's page seen {SEEN})"
    )
