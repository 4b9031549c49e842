"""Errors of the API, in the format that each family of clients expects."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from .rendering import dumps

__all__ = ["ApiError", "busy", "error_response", "gone", "style_of"]

_OPENAI_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_TEI_TYPES = {
    413: "Validation",
    422: "Tokenizer",
    424: "Backend",
    429: "Overloaded",
    503: "Unhealthy",
    504: "Backend",
}


class ApiError(Exception):
    """Answers the request with a status and a message.

    Attributes:
        status: of HTTP.
        message: for people; names the field and the index of what is wrong.
        param: the field, such as ``input[3]``.
        code: for programs, such as ``model_not_found``.
        headers: of the response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        """See the class."""
        super().__init__(status, message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = headers or {}

    def __str__(self) -> str:
        return self.message


def gone() -> ApiError:
    """Nobody waits for the answer any more."""
    return ApiError(499, "the client closed the connection", code="client_closed")


def busy(message: str, seconds: float, status: int = 429, code: str = "queue_full") -> ApiError:
    """An error with Retry-After, in whole seconds."""
    return ApiError(status, message, code=code, headers={"retry-after": str(max(1, round(seconds)))})


def style_of(path: str) -> str:
    """Whose error format clients of ``path`` know: "openai", "tei" or "rerank" (Cohere's and TEI's in one)."""
    if path.endswith("/rerank"):
        return "rerank"
    return "tei" if path in ("/", "/embed", "/info") else "openai"


def error_response(error: ApiError, style: str) -> Response:
    """The response of an error."""
    status = error.status
    content: dict[str, Any]
    if style == "openai":
        kind = _OPENAI_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
        content = {
            "error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}
        }
    else:
        kind = _TEI_TYPES.get(status, "Validation" if status < 500 else "Backend")
        content = {"error": error.message, "error_type": kind}
        if style == "rerank":
            content["message"] = error.message
    return Response(dumps(content), status, error.headers, "application/json")
