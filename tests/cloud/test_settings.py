"""The table `[cloud]` and its variables: values, and messages of errors."""

from pathlib import Path

import pytest

from taetpu.cloud.settings import Settings, read_settings
from taetpu.cloud.ssh import state_folder
from taetpu.core.errors import UserError


def write(folder: Path, text: str) -> Path:
    file = folder / "taetpu.toml"
    file.write_text(text)
    return file


def test_the_nearest_file_above_is_read(tmp_path: Path) -> None:
    write(tmp_path, '[cloud]\nproject = "my-project"\nzones = ["us-east5-b"]\nmax_hours = 2\n')
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    found = read_settings(below, {"USER": "me"})
    assert (found.project, found.zones, found.max_hours, found.owner) == ("my-project", ("us-east5-b",), 2.0, "me")
    assert found.default_region == "us-east5"


VARIABLES = {
    "project": ("other-project", "other-project"), "zones": ("us-east5-a, us-east5-b", ("us-east5-a", "us-east5-b")),
    "max_usd": ("12.5", 12.5), "idle_minutes": ("0", 0), "external_ip": ("true", True), "api": ("gce", "gce"),
    "secrets": ("A,B=c", ("A", "B=c")), "poll_seconds": ("0.5", 0.5),
}  # fmt: skip


@pytest.mark.parametrize("name", VARIABLES)
def test_variables_override_the_file(tmp_path: Path, name: str) -> None:
    write(tmp_path, '[cloud]\nproject = "my-project"\nmax_usd = 3.0\nidle_minutes = 9\n')
    text, value = VARIABLES[name]
    assert getattr(read_settings(tmp_path, {f"TAETPU_{name.upper()}": text}), name) == value


def test_every_field_has_a_variable(tmp_path: Path) -> None:
    given = {"user": "me", "bucket": "my-bucket", "region": "us-east5", "service_account": "a@b"}
    given["subnetwork"] = "mine"
    given |= {name: text for name, (text, _) in VARIABLES.items()}
    for name, field in Settings.model_fields.items():
        text = given.get(name, str(field.default or "1"))
        read = read_settings(tmp_path, {f"TAETPU_{name.upper()}": text})
        assert getattr(read, name) not in ("", ())


MISTAKES = {
    "max_hours = 0": ("max_hours", "0"),
    "max_hours = 169": ("max_hours", "168"),
    'max_hours = "long"': ("max_hours", "long"),
    "idle_minutes = -1": ("idle_minutes", "-1"),
    'project = "My Project"': ("project", "gcloud projects list"),
    'zones = ["us-east5"]': ("zones", "us-east5-b"),
    'bucket = "gs://x"': ("bucket", "without gs://"),
    'region = "us-east5-b"': ("region", "us-east5"),
    'secrets = ["a b"]': ("secrets", "WANDB_API_KEY"),
    'api = "gke"': ("api", "gce"),
    'network = "a,b=c"': ("network", "a,b=c"),
    'service_account = "a@b,c=d"': ("service_account", "a@b,c=d"),
    'servise_account = "x@y"': ("servise_account", "service_account"),
    'key_file = "key.json"': ("key_file", "gcloud auth login"),
}


@pytest.mark.parametrize("line", MISTAKES)
def test_errors_have_place_and_remedy(tmp_path: Path, line: str) -> None:
    file = write(tmp_path, f"[cloud]\n{line}\n")
    with pytest.raises(UserError) as raised:
        read_settings(tmp_path, {})
    for text in (*MISTAKES[line], str(file)):
        assert text in str(raised.value)


@pytest.mark.parametrize(("text", "said"), [
    ("[clod]\n", "[cloud]"), ("cloud = 3\n", "table"), ("[cloud]\nzones = us-east5-b\n", "quotes"),
    ("[cloud]\nproject = '\xff'\n", "TOML"),
])  # fmt: skip
def test_files_that_are_not_settings_are_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "taetpu.toml").write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError, match=r"taetpu\.toml") as raised:
        read_settings(tmp_path, {})
    assert said in str(raised.value)


def test_an_invalid_variable_is_named_and_not_the_file(tmp_path: Path) -> None:
    write(tmp_path, '[cloud]\nproject = "my-project"\n')
    with pytest.raises(UserError, match="TAETPU_MAX_HOURS") as raised:
        read_settings(tmp_path, {"TAETPU_MAX_HOURS": "many"})
    assert "taetpu.toml" not in str(raised.value)


def test_the_bucket_is_named_after_the_project(tmp_path: Path) -> None:
    assert read_settings(tmp_path, {"GOOGLE_CLOUD_PROJECT": "my-project"}).bucket == "my-project-taetpu"
    assert read_settings(tmp_path, {"TAETPU_PROJECT": "example.com:my-lab"}).bucket == "example-com-my-lab-taetpu"
    assert read_settings(tmp_path, {"GOOGLE_CLOUD_PROJECT": "my-project", "TAETPU_BUCKET": "b-b"}).bucket == "b-b"
    assert read_settings(tmp_path, {}).bucket == ""


@pytest.mark.parametrize(
    ("variable", "text"), [("GOOGLE_CLOUD_PROJECT", "my-project\nProxyCommand x"), ("TAETPU_IMAGE", "image\nreboot")]
)
def test_line_breaks_in_what_enters_scripts_are_refused(tmp_path: Path, variable: str, text: str) -> None:
    with pytest.raises(UserError) as error:
        read_settings(tmp_path, {"USER": "me", variable: text})
    assert repr(text) in error.value.problem
    assert error.value.path in ((variable,), ("image",))


@pytest.mark.parametrize("name", ["a\nb", 'a"b', "a,b"])
def test_state_folder_that_configurations_cannot_name_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", f"/tmp/{name}")
    with pytest.raises(UserError) as error:
        state_folder()
    assert error.value.path == ("XDG_STATE_HOME",)
