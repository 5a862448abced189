"""Base classes of all schemas of the API."""

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
        """Describe a request as closed, and a response as open to fields of later versions."""
        described = handler(schema)
        if handler.mode == "serialization":
            handler.resolve_ref_schema(described).pop("additionalProperties", None)
        return described


class Schema(_Described):
    """A schema that rejects unknown fields, so that a misspelled one is an error.

    The client reads responses with `extra="ignore"`, since a newer service may add fields; the description also allows
    them.
    """

    # Pydantic refuses lone surrogates only in strings with a length limit. Such a string cannot be stored or sent.
    model_config = ConfigDict(extra="forbid", str_min_length=0)


class WorkerSchema(_Described):
    """A request of a worker.

    Unknown fields of a newer worker are ignored, since a refusal would lose all of its reports.
    """

    model_config = ConfigDict(extra="ignore")
