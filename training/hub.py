"""Uploads a trained model to the Hugging Face Hub."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["push_to_hub"]


def push_to_hub(
    folder: str | os.PathLike[str],
    repository: str,
    *,
    private: bool = False,
    revision: str | None = None,
    token: str | None = None,
) -> str:
    """Upload a model folder, its card included; the repository is created if it does not exist.

    Args:
        folder: of the model, ``RUN/model``.
        repository: ``USER/NAME``.
        private: of a new repository.
        revision: the branch to write to; created if it does not exist. None for main.
        token: None for the one of ``hf auth login`` or HF_TOKEN.

    Returns:
        The address of the commit.

    Raises:
        FileNotFoundError: the folder is no model folder.
        ImportError: huggingface-hub is not installed.
        ValueError: the name of the repository is no such name.
        OSError: the Hub cannot be reached, or refuses.
    """
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder} holds no config.json; give the folder `model` of a finished run")
    check_repository(repository)
    from huggingface_hub import HfApi

    api = HfApi(token=token)
    try:
        api.create_repo(repository, private=private, exist_ok=True)
        if revision is not None:
            api.create_branch(repository, branch=revision, exist_ok=True)
        done = api.upload_folder(
            repo_id=repository,
            folder_path=folder,
            revision=revision,
            commit_message="Model trained with embedkit",
        )
    except Exception as error:  # of the HTTP client, which need not be an OSError
        raise OSError(
            f"{repository}: not uploaded ({type(error).__name__}: {error}); the model is in {folder}, and the same "
            "command uploads it"
        ) from error
    return str(done.commit_url)


def check_repository(repository: str) -> None:
    """Refuse a repository of another form than ``USER/NAME``, before a training of hours.

    Raises:
        ImportError: huggingface-hub is not installed.
        ValueError: the name is wrong.
    """
    try:
        from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]
    except ImportError:
        raise ImportError("the Hub needs the package huggingface-hub: pip install huggingface-hub") from None
    validate_repo_id(repository)
    if "/" not in repository:  # which it allows
        raise ValueError(f"{repository!r} is not a name on the Hub; give USER/NAME")
