"""The JSON schema of study files (draft 7), from which editors complete and check them.

The schema accepts every valid study. It finds unknown keys and kinds and values of a wrong type or out of range. What
depends on several values, such as heads that must divide the width, is checked when a study is loaded.
"""

from collections.abc import Mapping
from functools import cache
from types import NoneType
from typing import Any, get_args

from pydantic import BeforeValidator
from pydantic.json_schema import GenerateJsonSchema

from taetpu.core.config import Component, Config, config_class_of, slot_of
from taetpu.core.kind_docs import field_docs, kind_doc
from taetpu.core.registry import kinds
from taetpu.nn.lm import ModelConfig
from taetpu.spec.field_paths import Place
from taetpu.spec.presets import PRESETS
from taetpu.spec.programs.study_keys import MODEL_KEYS, ProgramFile
from taetpu.spec.start import StartConfig
from taetpu.spec.study_config import RunConfig
from taetpu.spec.study_file import StudyFile
from taetpu.spec.study_spec import StudySpec

DRAFT = "http://json-schema.org/draft-07/schema#"
NONE: dict[str, Any] = {"enum": [None, "none"]}

Schema = dict[str, Any]


def study_schema() -> Schema:
    """Return the JSON schema of study files, with the kinds that are registered now.

    A study with the key `plugins` may use kinds that are not registered, so their names are not checked there.
    """
    program, definitions = _Builder("program"), Schema()
    known, open_ = _Builder("study"), _Builder("plugins", open_kinds=True)
    models = {"if": {"required": ["plugins"]}, "then": open_.file(StudySpec), "else": known.file(StudySpec)}
    for builder in (known, open_, program):
        definitions |= builder.definitions
    schema = {
        "$schema": DRAFT,
        "title": "taetpu study",
        "type": "object",
        "required": ["study"],
        "if": {"required": ["program"]},
        "then": program.file(ProgramFile),
        "else": models,
    }
    return {**schema, "definitions": definitions | program.definitions}


class _Builder:
    """Builds the definitions of a variant of the schema.

    Args:
        name: The prefix of the definitions' names.
        open_kinds: Whether kinds that are not registered are accepted.
    """

    def __init__(self, name: str, open_kinds: bool = False) -> None:
        self.name = name
        self.open_kinds = open_kinds
        self.definitions: Schema = {}

    def file(self, cls: type[StudyFile]) -> Schema:
        """Return the schema of the top level of a study file."""
        left_out = MODEL_KEYS if cls is ProgramFile else ()
        fields = {name: self._field(cls, name) for name in cls.model_fields if name not in left_out}
        if cls is StudySpec:
            fields["base"] = {**_mapping(self._section(RunConfig), {"type": "null"}), **self._about(cls, "base")}
            changes = self._define("changes", lambda: {"type": "object", "properties": self._paths()})
            for name in ("arms", "leave_one_out", "add_one_in", "factorial", "across"):  # changes by name
                fields[name]["additionalProperties"] = {"anyOf": [changes, {}]}
            for name in ("grid", "factorial", "ladder", "across", "tune"):  # values by path
                fields[name]["anyOf"] = [changes, {}]
        return {"properties": fields, "additionalProperties": False}

    def _paths(self) -> Schema:
        """Return the settings of the baseline by dotted path, which editors offer as keys. Values are not checked."""
        paths: Schema = {}

        def add(path: str, cls: type[Config], name: str) -> None:
            mark = slot_of(cls, name)
            single = "" if mark is None or mark.many else mark.name
            paths[path] = {"anyOf": [self._slot(single), {}] if single else [{}], **self._about(cls, name)}
            for kind in kinds(single).values() if single else ():
                paths.update({f"{path}.{field}": self._about(kind, field) for field in kind.model_fields})

        for section in RunConfig.model_fields:
            if (inner := config_class_of(RunConfig, section)) is None:
                add(section, RunConfig, section)
                continue
            for name in inner.model_fields:
                add(f"{section}.{name}", inner, name)
        return paths

    def _reference(self, name: str) -> Schema:
        return {"$ref": f"#/definitions/{self.name}.{name}"}

    def _define(self, name: str, build: Any) -> Schema:
        """Return a reference to a definition, which is built unless it exists."""
        if f"{self.name}.{name}" not in self.definitions:
            self.definitions[f"{self.name}.{name}"] = {}  # a definition may contain itself
            self.definitions[f"{self.name}.{name}"] = build()
        return self._reference(name)

    def _about(self, cls: type[Config], name: str) -> Schema:
        text = " ".join(field_docs(cls)[name].split())
        return {"description": text} if text else {}

    # --- sections and fields ------------------------------------------------------------------------------------------

    def _section(self, cls: type[Config]) -> Schema:
        """Return the schema of a mapping with the fields of a config class."""
        return self._define(cls.__name__, lambda: self._object(cls))

    def _object(self, cls: type[Config]) -> Schema:
        fields = {name: self._field(cls, name) for name in cls.model_fields}
        if cls is ModelConfig:
            start = {"anyOf": [{"type": "string"}, self._section(StartConfig)]}
            fields["preset"] = {"enum": [*PRESETS], "description": "Known architecture whose settings are the default."}
            fields["start"] = {**start, "description": "Stored model whose settings and parameters are the default."}
        made: Schema = {"type": "object", "properties": fields, "additionalProperties": False}
        if _has_short_form(cls):
            made = _mapping(made, {})
        return made

    def _field(self, cls: type[Config], name: str) -> Schema:
        """Return the schema of a field's value, with its description."""
        mark, inner = slot_of(cls, name), config_class_of(cls, name)
        if mark is not None:
            value = self._entries(mark.name) if mark.many else self._slot(mark.name)
        else:
            value = _plain(cls, name, {} if inner is None else self._section(inner))
            section = Place(cls, name).section
            if section is not None and section is not inner:  # `layers`, by number
                value = {"type": "object", "additionalProperties": _mapping(self._section(section), NONE)}
        return {**({"allOf": [value]} if "$ref" in value else value), **self._about(cls, name)}

    # --- slots --------------------------------------------------------------------------------------------------------

    def _slot(self, slot: str) -> Schema:
        """Return the schema of a component: a kind, or a mapping of a kind and its fields."""
        return self._define(f"slot.{slot}", lambda: self._component(slot))

    def _component(self, slot: str) -> Schema:
        known = kinds(slot)
        names: Schema = {"enum": [*known]}
        kind = {"anyOf": [names, {"type": "string"}]} if self.open_kinds else names
        by_kind = [
            {
                "if": {"type": "object", "required": ["kind"], "properties": {"kind": {"const": name}}},
                "then": self._kind(slot, name, cls),
            }
            for name, cls in known.items()
        ]
        fields = {"type": "object", "properties": {"kind": kind}, "allOf": by_kind}
        words: Schema = {"type": "string", **kind}
        return _mapping(fields, words, *[{"type": "null"}] * ("none" in known))

    def _kind(self, slot: str, name: str, cls: type[Component]) -> Schema:
        def build() -> Schema:
            fields = {field: self._field(cls, field) for field in cls.model_fields}
            about = kind_doc(cls).summary
            properties = {"kind": {"const": name, "description": about}, **fields}
            return {"type": "object", "description": about, "properties": properties, "additionalProperties": False}

        return self._define(f"{slot}.{name}", build)

    def _entries(self, slot: str) -> Schema:
        """Return the schema of several components: a list of kinds, or settings by name."""

        def entry(name: str, cls: type[Component]) -> Schema:
            settings = {"if": {"required": ["kind"]}, "then": self._slot(slot), "else": self._kind(slot, name, cls)}
            return _mapping(settings, NONE, {"type": "string"})

        def build() -> Schema:
            each = _mapping(self._slot(slot), NONE, {"type": "string"})
            by_name = {name: entry(name, cls) for name, cls in kinds(slot).items()}
            listed = {"type": "array", "items": self._slot(slot)}
            mapping = {"type": "object", "properties": by_name, "additionalProperties": each}
            return _mapping(mapping, NONE, {"type": "string"}, listed)

        return self._define(f"entries.{slot}", build)


def _mapping(schema: Schema, *others: Schema) -> Schema:
    """Return the schema of a value that is a mapping with a schema, or has one of the other schemas.

    Errors in the mapping then have their place. With `anyOf`, they would be those of the whole value.
    """
    return {"if": {"type": "object"}, "then": schema, "else": {"anyOf": [*others]}}


def _has_short_form(cls: type[Config]) -> bool:
    """Return whether a config class may also be written as something else than a mapping."""
    return any(v.info.mode == "before" for v in cls.__pydantic_decorators__.model_validators.values())


class _Lenient(GenerateJsonSchema):
    """Leaves out defaults, and accepts every value of a type that JSON does not have."""

    def default_schema(self, schema: Any) -> Schema:
        return self.generate_inner(schema["schema"])

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> Schema:
        return {}


@cache
def _schemas(cls: type[Config]) -> Mapping[str, Schema]:
    """Return the schemas of a class's fields, as pydantic knows them."""
    return cls.model_json_schema(schema_generator=_Lenient)["properties"] if cls.model_fields else {}


def _plain(cls: type[Config], name: str, inner: Schema) -> Schema:
    """Return the schema of a field that is not a slot.

    Args:
        cls: The config class.
        name: The name of the field.
        inner: The schema of the config class in the field's annotation; empty if there is none.
    """
    field = cls.model_fields[name]
    made = _in_study_files(_schemas(cls)[name], inner)
    before = {
        target
        for validator in cls.__pydantic_decorators__.field_validators.values()
        if validator.info.mode != "after"
        for target in validator.info.fields
    }
    if name in before or any(isinstance(mark, BeforeValidator) for mark in field.metadata):
        made = {"anyOf": [made, {}]}  # other forms are accepted, and checked when the study is loaded
    if inner and NoneType in get_args(field.annotation):
        below = config_class_of(cls, name)
        made = _mapping(inner, {} if below is not None and _has_short_form(below) else NONE)
    return made


def _in_study_files(schema: Any, inner: Schema) -> Any:
    """Return a schema of pydantic as study files are written: with the word `none`, and without titles."""
    if isinstance(schema, list):
        return [_in_study_files(item, inner) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    if "$ref" in schema:
        return inner
    if schema.get("type") == "null":
        return NONE
    kept = {key: _in_study_files(value, inner) for key, value in schema.items() if key not in ("title", "description")}
    if "prefixItems" in kept:  # of a later draft
        kept["items"] = kept.pop("prefixItems")
    if inner and kept.get("additionalProperties") == inner:
        kept["additionalProperties"] = _mapping(inner, NONE)
    return kept
