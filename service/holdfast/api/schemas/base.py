"""What all that travels over the API has in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema


class _Described(BaseModel):
    """A schema whose description differs between requests and responses."""

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """The description: a request is closed, an answer is open to fields of a later version."""
        described = handler(schema)
        if handler.mode == "serialization":
            handler.resolve_ref_schema(described).pop("additionalProperties", None)
        return described


class Schema(_Described):
    """Strict about names, so that a misspelt field is an answer and not a silence.

    The client reads answers with `extra="ignore"`, since a newer service may add fields; the description says so, too.
    """

    # Pydantic refuses half of a surrogate pair only in strings with a bound, of any length. Such a string cannot be stored or sent.
    model_config = ConfigDict(extra="forbid", str_min_length=0)


class WorkerSchema(_Described):
    """A request of a worker: what a newer worker adds is ignored, since a refusal would lose all of its reports."""

    model_config = ConfigDict(extra="ignore")
