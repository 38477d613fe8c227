"""The old `.env`: what each variable became is told, the key file is refused, and no secret is repeated."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taetpu.cloud.doctor import dotenv
from taetpu.cloud.settings import Settings
from taetpu.core.loading import load

OLD = """\
# TPU VM
TPU_TYPE=v2-8
TPU_NAME=tae-tpu       # the machine
TPU_ZONE='europe-west4-a'
TPU_REGION=europe-west4
export PROJECT_ID="infra-1"
BUCKET_NAME=gs://infra-1-data/
BUCKET_REGION=europe-west1
SERVICE_ACCOUNT_JSON=infra-1-ae00.json
SERVICE_ACCOUNT_EMAIL=bot@infra-1.iam.gserviceaccount.com
RUNTIME_VERSION=tpu-ubuntu2204-base
IMAGE_NAME=eu.gcr.io/${PROJECT_ID}/tae-tpu:v1
DATASET_EMOTION_NAME="dair-ai/emotion"
WANDB_API_KEY=sesame
not a line
"""


@pytest.fixture
def take(tmp_path):
    """`take(text) -> Taken`: what a file of such text comes to."""

    def taken(text=OLD):
        (tmp_path / ".env").write_text(text)
        return dotenv.take(tmp_path / ".env")

    return taken


def test_what_has_a_setting_is_taken_over(take):
    assert take().values == {
        "project": "infra-1",
        "zones": ["europe-west4-a"],
        "region": "europe-west1",
        "stack": "tae-tpu",
        "bucket": "infra-1-data",
        "service_account": "bot@infra-1.iam.gserviceaccount.com",
    }
    assert load(Settings, take().values).zones == ("europe-west4-a",)


def test_what_became_of_every_variable_is_told(take):
    became = take().became
    assert set(became) == {line.removeprefix("export ").split("=")[0] for line in OLD.splitlines() if "=" in line}
    assert became["TPU_TYPE"] == "said at the command: `taetpu tpu up --type v2-8`"
    assert became["TPU_REGION"].startswith("left out: the bucket is in europe-west1")
    assert became["BUCKET_REGION"] == "region = europe-west1"
    assert "Container Registry ended on 2025-03-18" in became["IMAGE_NAME"]
    assert became["DATASET_EMOTION_NAME"] == "said in a study's file, under `data`"
    assert became["WANDB_API_KEY"] == "left out: nothing here reads it"
    assert "sesame" not in str(became)


def test_the_key_file_is_refused_and_where_it_is_told(take, tmp_path):
    said = take().became["SERVICE_ACCOUNT_JSON"]
    assert said.startswith(
        "refused, as keys of service accounts leak: delete the file, revoke the key in IAM, and sign"
    )
    assert "gcloud auth application-default login" in said
    assert "json" not in str(take().values)
    (tmp_path / "infra-1-ae00.json").write_text("{}")
    assert f"{tmp_path / 'infra-1-ae00.json'} is still there" in take().became["SERVICE_ACCOUNT_JSON"]


def test_a_value_that_no_setting_takes_is_left_out_with_the_reason(take):
    taken = take("TPU_ZONE=here\nTPU_NAME=My_TPU\nSERVICE_ACCOUNT_EMAIL=key.json\nPROJECT_ID=\n")
    assert taken.values == {}
    assert taken.became["TPU_ZONE"].startswith("left out: 'here' is no zone")
    assert taken.became["TPU_NAME"].startswith("left out: 'My_TPU' cannot be the name of a TPU")
    assert taken.became["SERVICE_ACCOUNT_EMAIL"].startswith("left out: 'key.json' is no account")
    assert taken.became["PROJECT_ID"] == "left out: it is empty"


def test_an_image_by_its_digest_is_kept(take):
    image = f"europe-west4-docker.pkg.dev/p/r/i@sha256:{'0' * 64}"
    assert take(f"IMAGE_NAME={image}\n").values == {"image": image}


def test_the_file_is_found_where_the_scripts_had_it(tmp_path):
    assert dotenv.find(tmp_path) is None
    for place in ("source/.env", "config/.env", ".env"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).touch()
        assert dotenv.find(tmp_path) == tmp_path / place


@given(st.dictionaries(st.from_regex(r"[A-Z_]{1,12}", fullmatch=True), st.text("abc/$#{} \"'=\\é"), max_size=5))
def test_no_file_is_too_odd(tmp_path_factory, variables):
    path = tmp_path_factory.getbasetemp() / "odd.env"
    path.write_text("".join(f"{name}={value}\n" for name, value in variables.items()))
    assert set(dotenv.take(path).became) == set(variables)
