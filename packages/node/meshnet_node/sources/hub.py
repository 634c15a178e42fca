"""Hugging Face: ``owner/repository:file.gguf``, resolved by ``huggingface_hub``, fetched in ranges by us.

The library knows addresses, tokens, mirrors (``HF_ENDPOINT``) and what gated means. It downloads whole files,
so the bytes are not its business here. The address is pinned to the commit it resolved to: the file cannot
change half-way.
"""

import os
import re
from pathlib import Path

from meshnet_node.engine.gguf_file import ModelFile
from meshnet_node.errors import SourceError
from meshnet_node.sources.http import HttpSource
from meshnet_node.sources.remote import ReportProgress, open_http

HUB_MODEL = re.compile(r"(?:hf:)?([A-Za-z0-9][\w.-]*/[\w.-]+):([\w./-]+\.gguf)")


def open_hub(repository: str, file_name: str, cache_dir: Path, progress: ReportProgress) -> ModelFile:
    """Raises ModelFileError, saying what is wrong with the name or the access."""
    import huggingface_hub  # half a second to import, and only this kind of source needs it
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    token, endpoint = huggingface_hub.get_token(), os.environ.get("HF_ENDPOINT")
    try:
        metadata = huggingface_hub.get_hf_file_metadata(
            huggingface_hub.hf_hub_url(repository, file_name, endpoint=endpoint), token=token or False
        )
        url = huggingface_hub.hf_hub_url(repository, file_name, revision=metadata.commit_hash, endpoint=endpoint)
    except HfHubHTTPError as error:
        first_line = str(error).strip().splitlines()[0]
        raise SourceError(
            f"{repository}:{file_name} cannot be had from Hugging Face ({first_line}); check repository and file name, "
            "and for a gated one accept its terms and set HF_TOKEN"
        ) from error
    except (HFValidationError, OSError, ValueError) as error:
        raise SourceError(f"{repository}:{file_name}: Hugging Face cannot be reached ({error})") from error
    except Exception as error:
        # The library's HTTP client has its own tree of transport errors, which is none of its interface.
        raise SourceError(f"{repository}:{file_name}: Hugging Face cannot be reached ({error})") from error
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    source = HttpSource(url, headers=headers)
    return open_http(source, Path(file_name).name, cache_dir, progress, identity=metadata.etag or "")
