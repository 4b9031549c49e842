"""Uploads a trained model to the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path

__all__ = ["push_to_hub"]


def push_to_hub(
    folder: Path,
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
    """
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder} holds no config.json; give the folder `model` of a finished run")
    try:
        from huggingface_hub import HfApi
    except ImportError:
        raise ImportError("the Hub needs the package huggingface-hub: pip install huggingface-hub") from None
    api = HfApi(token=token)
    api.create_repo(repository, private=private, exist_ok=True)
    if revision is not None:
        api.create_branch(repository, branch=revision, exist_ok=True)
    done = api.upload_folder(
        repo_id=repository,
        folder_path=folder,
        revision=revision,
        commit_message="Model trained with embedkit",
    )
    return str(done.commit_url)
