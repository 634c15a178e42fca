"""Options that the tracker and the node have alike."""

from pathlib import Path
from typing import Annotated

import typer

TlsCert = Annotated[
    Path | None, typer.Option(envvar="MESHNET_TLS_CERT", help="Certificate chain (PEM) to serve https with.")
]
TlsKey = Annotated[Path | None, typer.Option(envvar="MESHNET_TLS_KEY", help="The certificate's key (PEM).")]
TlsCa = Annotated[
    Path | None,
    typer.Option(envvar="MESHNET_TLS_CA", help="An authority (PEM) to trust beside the system's, in the mesh."),
]
LogJson = Annotated[bool, typer.Option(envvar="MESHNET_LOG_JSON", help="Log JSON lines.")]
