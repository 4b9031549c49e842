"""The limit of open files, which most shells set to as many as there may be connections."""

from __future__ import annotations

import logging
import resource

import pytest

from embedkit.serve.server import _open_more_files


def test_it_is_raised_as_far_as_it_may_be(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    limits = [256, 4096]
    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", lambda _, given: limits.__setitem__(slice(None), given))
    with caplog.at_level(logging.WARNING, "embedkit.serve"):
        assert _open_more_files(1024) == 1024
        assert limits == [1280, 4096]
        assert _open_more_files(100) == 100
        assert limits == [1280, 4096]
        assert not caplog.messages
        assert _open_more_files(5000) == 3840
    assert limits == [4096, 4096]
    assert "at most 4096 files may be open (ulimit -Hn), so that --max-connections is 3840" in caplog.text
