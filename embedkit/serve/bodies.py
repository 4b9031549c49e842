"""What requests hold; pydantic checks it, and the OpenAPI description is made of it."""

from __future__ import annotations

import json
import math
from difflib import get_close_matches
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema
from pydantic_core import PydanticCustomError

from .errors import ApiError
from .settings import Limits

__all__ = [
    "LONGEST_CONDITION",
    "EmbedRequest",
    "EmbeddingsRequest",
    "RerankRequest",
    "SearchRequest",
    "parse",
]

_B = TypeVar("_B", bound=BaseModel)

LONGEST_CONDITION = 10_000
"""Characters of ``where``, and of the condition that ``filter`` becomes."""
_LONGEST_NAME = 1000  # of a model
_LONGEST_SHOWN = 80  # characters of a field that is unknown


def _bad(where: str, message: str) -> PydanticCustomError:
    return PydanticCustomError("text", "{where} {message}", {"where": where, "message": message})


def check_text(text: Any, where: str) -> str:
    """A str that can be encoded as UTF-8; ``where`` is the field and the index."""
    if not isinstance(text, str):
        raise _bad(where, f"must be a string, not {_json_type(text)}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _bad(where, f"holds a lone surrogate at character {error.start}") from None
    return text


def _texts(name: str, *, single: bool = True, optional: bool = False) -> BeforeValidator:
    def check(value: Any) -> Any:
        if value is None and optional:
            return None
        if isinstance(value, str) and single:
            return check_text(value, name)
        if not isinstance(value, list):
            raise _bad(name, f"must be {'a string or ' if single else ''}a list, not {_json_type(value)}")
        for index, text in enumerate(value):
            check_text(text, f"{name}[{index}]")
        return value

    return BeforeValidator(check)


def _input(value: Any) -> Any:
    """A text, texts, token ids, or lists of token ids."""
    if isinstance(value, str):
        return check_text(value, "input")
    if not isinstance(value, list):
        raise _bad("input", f"must be a string, a list of strings or token ids, not {_json_type(value)}")
    if value and isinstance(value[0], list):
        for index, ids in enumerate(value):
            if not isinstance(ids, list) or not _are_ids(ids):
                raise _bad(f"input[{index}]", "must be a list of token ids, as the first item is")
        return value
    if value and type(value[0]) is int:
        if not _are_ids(value):
            raise _bad("input", "must be one list of token ids, as its first item is one")
        return value
    for index, text in enumerate(value):
        check_text(text, f"input[{index}]")
    return value


def _are_ids(ids: list[Any]) -> bool:
    return set(map(type, ids)) == {int}


def _document(value: Any) -> Any:
    """Documents of a rerank request: strings, or objects with a text, as Cohere has them."""
    if value is None:
        return None
    if not isinstance(value, list):
        raise _bad("documents", f"must be a list, not {_json_type(value)}")
    texts = []
    for index, document in enumerate(value):
        where = f"documents[{index}]"
        if isinstance(document, dict):
            document = document.get("text")  # noqa: PLW2901
            where += ".text"
        texts.append(check_text(document, where))
    return texts


def _vector(value: Any) -> Any:
    if value is not None and not isinstance(value, list):
        raise _bad("vector", f"must be a list of numbers, not {_json_type(value)}")
    return value


def _where(value: Any) -> Any:
    if value is None:
        return None
    if not isinstance(value, str):
        raise _bad(
            "where",
            f"must be a condition as text, such as lang = 'en' and year > 2019, not {_json_type(value)}; fields and "
            "the values that they must equal go in filter",
        )
    if not value.strip():
        raise _bad("where", "is empty; leave it out to search all documents")
    return check_text(value, "where")


def _filter(value: Any) -> Any:
    """Fields and the values that they must equal."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise _bad(
            "filter",
            f"must be an object of fields and the values that they must equal, not {_json_type(value)}; conditions go "
            "in where",
        )
    for field, wanted in value.items():
        if not field:
            raise _bad("filter", "holds a field without a name")
        where = f"filter.{check_text(field, 'filter')}"
        if isinstance(wanted, (list, dict)):
            raise _bad(
                where,
                "must be a string, a number, true, false or null, which the field must equal, not "
                f"{_json_type(wanted)}; other conditions go in where",
            )
        if isinstance(wanted, float) and not math.isfinite(wanted):
            raise _bad(where, "must be a finite number")
        text = check_text(wanted, where) if isinstance(wanted, str) else ""
        if "\0" in field + text:
            raise _bad(where, "holds a null character, which no condition can hold")
    return value


def _hybrid(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    raise _bad("hybrid", f"must be true or false, not {_json_type(value)}")


def _rerank(value: Any) -> Any:
    if isinstance(value, bool):
        return value
    if not isinstance(value, str):
        raise _bad("rerank", f"must be true, false or the name of a reranker, not {_json_type(value)}")
    if not value:
        raise _bad("rerank", "is empty; give the name of a reranker, or true for the first")
    if len(value) > _LONGEST_NAME:
        raise _bad("rerank", f"is longer than any name of a reranker: {len(value):,} characters")
    return check_text(value, "rerank")


_STRING_OR_LIST = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}}
Input = Annotated[
    Any,
    BeforeValidator(_input),
    WithJsonSchema({"anyOf": [*_STRING_OR_LIST["anyOf"], _IDS, {"type": "array", "items": _IDS}]}),
]
_TEXT_LIST = WithJsonSchema({"type": "array", "items": {"type": "string"}})
Name = Annotated[str, Field(max_length=_LONGEST_NAME)]


class _Body(BaseModel):
    """Strict: "12" is no number. Unknown fields are ignored except in a search, since each client has some of its own.

    Clients that know a field send null for its default.
    """

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


class EmbeddingsRequest(_Body):
    """``POST /v1/embeddings``."""

    input: Input = Field(description="A text, a list of texts, token ids, or a list of them.")
    model: Name | None = Field(None, description="One of /v1/models; the first where none is named.")
    encoding_format: Literal["float", "base64"] | None = Field(
        "float", description="base64: little-endian float32, which is smaller and faster."
    )
    dimensions: int | None = Field(None, ge=1, description="How many dimensions to keep.")
    user: str | None = Field(None, description="Ignored.")
    input_type: Name | None = Field(
        None, description="query or document (also search_query, search_document, passage)."
    )
    prompt_name: Name | None = Field(
        None, description="Which of the model's prompts goes before each text; outranks input_type."
    )
    normalize: bool | None = Field(
        None,
        description="true: length 1. By default vectors are the model's own, and truncated ones are normalized "
        "where the model's are.",
    )
    truncate: bool | None = Field(
        None, description="Whether a text that is too long is cut or refused; by default as the server says."
    )


def _direction(value: Any) -> Any:
    if isinstance(value, str) and value.lower() == "left":
        raise _bad("truncation_direction", "is Left, and texts are cut at their end; leave it out")
    return value


_Direction = Annotated[
    Literal["Right", "right"], BeforeValidator(_direction), Field(description="The end of a text is cut.")
]


class EmbedRequest(_Body):
    """``POST /embed``, as Text Embeddings Inference has it."""

    inputs: Annotated[Any, _texts("inputs"), WithJsonSchema(_STRING_OR_LIST)]
    model: Name | None = None
    normalize: bool | None = True
    truncate: bool | None = None
    truncation_direction: _Direction | None = None
    prompt_name: Name | None = None
    dimensions: int | None = Field(None, ge=1)


class RerankRequest(_Body):
    """``POST /rerank``: Cohere's ``documents`` or Text Embeddings Inference's ``texts``."""

    query: Annotated[str, BeforeValidator(lambda value: check_text(value, "query"))]
    model: Name | None = None
    # before documents, whose objects need no text in Cohere's API if it names others
    rank_fields: list[Literal["text"]] | None = Field(
        None, description="Documents are ranked by their text; put other fields into it."
    )
    documents: Annotated[Any, BeforeValidator(_document), _TEXT_LIST] = Field(
        None, description="Cohere's shape."
    )
    texts: Annotated[Any, _texts("texts", single=False, optional=True), _TEXT_LIST] = Field(
        None, description="Text Embeddings Inference's shape."
    )
    top_n: int | None = Field(None, ge=1)
    return_documents: bool | None = False
    return_text: bool | None = False
    raw_scores: bool | None = Field(False, description="The model's logits in place of scores from 0 to 1.")
    truncate: bool | None = Field(None, description="false: refuse pairs that are too long.")
    truncation_direction: _Direction | None = None


class SearchRequest(_Body):
    """``POST /v1/search``: one of ``query``, ``vector`` and ``like``."""

    # no client of others calls this route, and a misspelled filter must not return unfiltered hits
    model_config = ConfigDict(extra="forbid")

    query: Annotated[Any, _texts("query", optional=True), WithJsonSchema(_STRING_OR_LIST)] = Field(
        None, description="A text, or several; none of them empty."
    )
    vector: Annotated[list[float] | None, BeforeValidator(_vector)] = Field(
        None, description="A vector of the index's dimension."
    )
    like: str | None = Field(None, description="The id of a document, to find others near its stored vector.")
    k: int = Field(10, ge=1, json_schema_extra={"maximum": Limits().hits})
    where: Annotated[Annotated[str, Field(max_length=LONGEST_CONDITION)] | None, BeforeValidator(_where)] = (
        Field(None, description="A condition on the documents' fields, such as lang = 'en' and year > 2019.")
    )
    filter: Annotated[dict[str, str | int | float | bool | None] | None, BeforeValidator(_filter)] = Field(
        None, description="Fields and the values that they must equal."
    )
    hybrid: Annotated[bool | None, BeforeValidator(_hybrid)] = Field(
        None,
        description="Score by the words, too, and fuse the two scores; by default if the query is text and the index "
        "has the words.",
    )
    explain: bool = Field(False, description="Say what the score of each hit of a hybrid search is made of.")
    words: bool = Field(
        False, description="List those words at the beginning of each hit's text that the query asks for."
    )
    rerank: Annotated[bool | str, BeforeValidator(_rerank)] = Field(
        False, description="Order the hits by a reranker: true for the first, or its name."
    )
    nprobe: int | None = Field(None, ge=1)
    ef: int | None = Field(None, ge=1)


def parse(kind: type[_B], body: bytes) -> _B:
    """A body as ``kind``.

    Raises:
        ApiError: 400; names the first field that is wrong.
    """
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        if first["type"] == "json_invalid" and b"\\u" in body and "hex escape" in first["msg"]:
            _name_the_surrogate(kind, body)
        raise _as_api_error(first, kind) from None


def _as_api_error(first: Any, kind: type[BaseModel]) -> ApiError:
    if first["type"] == "text":
        return ApiError(400, first["msg"], param=first["ctx"]["where"])
    if first["type"] == "extra_forbidden":
        field = str(first["loc"][0])[:_LONGEST_SHOWN].encode("utf-8", "replace").decode()
        nearest = get_close_matches(field, kind.model_fields, 1)
        remedy = f"did you mean {nearest[0]}?" if nearest else f"known are {', '.join(kind.model_fields)}"
        return ApiError(400, f"{field} is unknown; {remedy}", param=field)
    where = ""
    for part in first["loc"]:
        where += f"[{part}]" if isinstance(part, int) else f".{part}" if where else str(part)
    if first["type"] == "json_invalid":
        return ApiError(400, f"the body is not valid JSON: {first['ctx']['error']}", code="invalid_json")
    message = first["msg"][:1].lower() + first["msg"][1:]
    return ApiError(400, f"{where or 'the body'}: {message}", param=where or None)


def _name_the_surrogate(kind: type[BaseModel], body: bytes) -> None:
    """Find which text holds a lone surrogate: pydantic's parser says only at which byte."""
    try:
        kind.model_validate(json.loads(body))
    except ValidationError as error:
        raise _as_api_error(error.errors(include_url=False, include_input=False)[0], kind) from None
    except (ValueError, RecursionError):
        return


def _json_type(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "a boolean", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return names.get(type(value), "a string")
