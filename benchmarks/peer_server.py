"""The peer: llama.cpp's own server with a whole model. Runs where ``xllamacpp`` is, which carries that server.

A program of its own, because this project does not depend on that package: ``peers.py`` starts it through
``uv run --with xllamacpp``. It prints its address when it serves and ends when its standard input does.
"""

import argparse
import sys

import xllamacpp  # type: ignore[import-not-found,unused-ignore]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--context-tokens", type=int, default=2048, help="of each slot")
    options = parser.parse_args()
    params = xllamacpp.CommonParams()
    params.model.path = options.model
    params.n_parallel = options.slots
    params.n_ctx = options.slots * options.context_tokens
    params.cpuparams.n_threads = options.threads
    params.cpuparams_batch.n_threads = options.threads
    params.port = 0
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
