"""Settings: the nearest file, the environment over it, and errors that name the file and the place in it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taetpu.cloud.settings import FILE, PREFIX, Settings, find, read
from taetpu.core.errors import UserError


@pytest.fixture
def write(tmp_path):
    """`write(text) -> Path`: the folder with a file of settings."""

    def put(text, folder=tmp_path):
        folder.mkdir(exist_ok=True, parents=True)
        (folder / FILE).write_text(text)
        return folder

    return put


def test_the_nearest_file_at_or_above_holds(write, tmp_path):
    write('[cloud]\nproject = "far-away"\nzones = ["us-east5-b"]\n')
    inner = write('[cloud]\nproject = "near-by"\n', tmp_path / "a")
    (inner / "b" / "c").mkdir(parents=True)
    assert find(inner / "b" / "c") == inner / FILE
    assert read(inner / "b" / "c", {}).project == "near-by"
    assert read(inner / "b", {}).zones == ()
    assert read(tmp_path, {}).zones == ("us-east5-b",)


def test_without_a_file_the_environment_and_the_defaults_hold(tmp_path):
    found = read(tmp_path, {"GOOGLE_CLOUD_PROJECT": "my-project", "USER": "me"})
    assert found == Settings(project="my-project", owner="me")
    assert read(tmp_path, {"USER": "me"}).project == ""


def test_the_environment_is_over_the_file_and_its_own_name_over_googles(write):
    folder = write('[cloud]\nproject = "of-file"\nmax_hours = 2\nexternal_ip = true\nzones = ["us-east5-a"]\n')
    mine = {
        "TAETPU_PROJECT": "my-project",
        "GOOGLE_CLOUD_PROJECT": "theirs-too",
        "TAETPU_ZONES": "us-east5-b, europe-west4-a,",
        "TAETPU_EXTERNAL_IP": "no",
        "TAETPU_MAX_HOURS": "0.5",
        "TAETPU_MAX_USD": "20",
        "TAETPU_IDLE_MINUTES": "0",
        "TAETPU_OWNER": "she",
    }
    found = read(folder, mine)
    assert (found.project, found.owner, found.max_hours, found.max_usd) == ("my-project", "she", 0.5, 20.0)
    assert (found.zones, found.external_ip, found.idle_minutes) == (("us-east5-b", "europe-west4-a"), False, 0)
    assert read(folder, {"GOOGLE_CLOUD_PROJECT": "theirs-too"}).project == "of-file"
    empty = write('[cloud]\nproject = ""\n')
    assert read(empty, {"GOOGLE_CLOUD_PROJECT": "theirs-too"}).project == "theirs-too"


WRONG = [
    ('[cloud]\nprojct = "p"\n', "unknown field 'projct'", "cloud.projct", "did you mean 'project'?"),
    ("[cloud]\nproject = 3\n", "3 is not allowed: must be a valid string", "cloud.project", "in quotes"),
    ('[cloud]\nzones = "us-east5-b"\n', "'us-east5-b' is not allowed: must be a list", "cloud.zones", "a list"),
    ('[cloud]\nzones = ["us-east5"]\n', "'us-east5' is no zone", "cloud.zones", '["us-east5-b"]'),
    (
        '[cloud]\nregion = "us-east5-b"\n',
        "'us-east5-b' is no region but a zone",
        "cloud.region",
        "its region, us-east5",
    ),
    ('[cloud]\nregion = "nowhere"\n', "'nowhere' is no region", "cloud.region", "us-east5"),
    ('[cloud]\nproject = "Foo Bar"\n', "'Foo Bar' is no project's id", "cloud.project", "6 to 30 lower-case letters"),
    ('[cloud]\nproject = "short"\n', "'short' is no project's id", "cloud.project", "`gcloud projects list` shows it"),
    ('[cloud]\nproject = "123456789012"\n', "is no project's id", "cloud.project", "not its name or number"),
    (
        '[cloud]\nbucket = "gs://mine/runs"\n',
        "'gs://mine/runs' is an address",
        "cloud.bucket",
        "its name alone: 'mine'",
    ),
    ('[cloud]\nbucket = "x"\n', "'x' cannot be the name of a bucket", "cloud.bucket", "3 to 63 lower-case letters"),
    ('[cloud]\nbackend = "gcee"\n', "there is no backend 'gcee'", "cloud.backend", "did you mean 'gce'?"),
    ("[cloud]\nmax_hours = 0\n", "0 is not allowed: must be greater than 0", "cloud.max_hours", "4.0, the default"),
    ("[cloud]\nmax_hours = 169\n", "169 is not allowed: must be less than or equal to 168", "cloud.max_hours", "4.0"),
    ("[cloud]\nmax_usd = nan\n", "nan is not allowed", "cloud.max_usd", ""),
    ("[cloud]\nidle_minutes = 1.5\n", "1.5 is not allowed", "cloud.idle_minutes", "a whole number"),
    ('[cloud]\nexternal_ip = "yes"\n', "'yes' is not allowed", "cloud.external_ip", "true or false"),
    ('[cloud]\nservice_account = "key.json"\n', "'key.json' is no account", "cloud.service_account", "e-mail address"),
    ('[cloud]\nsecrets = ["KEY=s3cr3t!"]\n', "this names no secret of Secret Manager", "cloud.secrets", "names alone"),
    ('[cloud]\nservice_account_json = "k"\n', "it uses no key files", "cloud.service_account_json", "gcloud auth"),
    ('[cloud]\ncredentials = "k"\n', "it uses no key files", "cloud.credentials", "gcloud auth"),
    ('[clout]\nproject = "p"\n', "'clout' is nothing that taetpu reads", "clout", "[cloud]"),
    ('project = "p"\n', "'project' is nothing that taetpu reads", "project", "below a line `[cloud]`"),
    ('cloud = "p"\n', "'p' is no table of settings", "cloud", "[cloud]"),
    ("[cloud]\nproject = p\n", "this is no TOML: Invalid value (at line 2, column 11)", "", "in quotes"),
]


@pytest.mark.parametrize(("text", "problem", "place", "remedy"), WRONG)
def test_what_is_wrong_is_told_with_the_file_and_the_place(write, text, problem, place, remedy):
    folder = write(text)
    with pytest.raises(UserError) as error:
        read(folder, {})
    assert problem in error.value.problem
    where = f"where:  {folder / FILE}" + (f" at {place}" if place else "")
    assert where in str(error.value).splitlines()[1]
    assert remedy in (error.value.remedy or "")


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("MAX_HOURS", "four", "TAETPU_MAX_HOURS='four' is no number"),
        ("MAX_HOURS", "nan", "TAETPU_MAX_HOURS='nan': nan is not allowed"),
        ("MAX_HOURS", "-1", "TAETPU_MAX_HOURS='-1': -1.0 is not allowed: must be greater than 0"),
        ("IDLE_MINUTES", "1.5", "TAETPU_IDLE_MINUTES='1.5' is no whole number"),
        ("EXTERNAL_IP", "perhaps", "TAETPU_EXTERNAL_IP='perhaps' is neither true nor false"),
        ("ZONES", "us-east5-b,here", "TAETPU_ZONES='us-east5-b,here': 'here' is no zone"),
        ("BACKEND", "tpu", "TAETPU_BACKEND='tpu': there is no backend 'tpu'"),
    ],
)
def test_a_wrong_variable_is_named_and_the_file_is_not_blamed(write, name, value, problem):
    folder = write('[cloud]\nproject = "my-project"\n')
    with pytest.raises(UserError) as error:
        read(folder, {f"{PREFIX}{name}": value})
    assert error.value.problem.startswith(problem)
    assert error.value.file is None
    assert (error.value.remedy or "").endswith(("or unset it", f"or unset {PREFIX}{name}"))


@pytest.mark.parametrize("project", ["my-project", "abcdef", "a" * 30, "example.com:my-project"])
def test_ids_that_projects_have(write, project):
    assert read(write(f'[cloud]\nproject = "{project}"\n'), {}).project == project


def test_a_wrong_project_of_googles_variable_is_told_with_it(tmp_path):
    with pytest.raises(UserError, match="'Foo Bar' is no project's id") as error:
        read(tmp_path, {"GOOGLE_CLOUD_PROJECT": "Foo Bar", "USER": "me"})
    assert "where:  GOOGLE_CLOUD_PROJECT" in str(error.value)


def test_secrets_are_names_by_variable(write):
    folder = write('[cloud]\nsecrets = ["WANDB_API_KEY", "HF_TOKEN=my-token"]\n')
    assert read(folder, {}).secret_names == {"WANDB_API_KEY": "WANDB_API_KEY", "HF_TOKEN": "my-token"}
    assert read(folder, {f"{PREFIX}SECRETS": "A, B=b"}).secret_names == {"A": "A", "B": "b"}


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / FILE).write_bytes(b"[cloud]\nproject = '\xff'\n")
    with pytest.raises(UserError, match="this is no TOML") as error:
        read(tmp_path, {})
    assert error.value.file == tmp_path / FILE


@given(st.text(max_size=40))
def test_any_text_of_the_environment_is_taken_or_refused_in_words(text):
    for name in Settings.model_fields:
        variable, refusal = f"{PREFIX}{name.upper()}", ""
        try:
            read(None, {variable: text, "USER": "me"})
        except UserError as error:
            refusal = error.problem
        assert refusal == "" or refusal.startswith(f"{variable}=")
