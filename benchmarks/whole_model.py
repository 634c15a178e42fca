"""The peer: llama.cpp running a whole model in this process, greedily, one stream, as fast as it can.

A server on standard input, so that a benchmark can run it in turn with something else:
each line ``{"prompt": [ids], "tokens": n}`` is answered by ``{"seconds": s, "first_s": s, "token_ids": [...],
"huge_mb": n}``, the last of which is how much of the model's file the kernel happens to map in huge pages.
llama.cpp's own defaults throughout (F16 KV cache, automatic flash attention); the end-of-text token is
drawn like any other, so that both sides of a comparison draw the same number of tokens.
"""

import argparse
import ctypes
import json
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import llama_cpp
import numpy as np

from meshnet_node.engine.huge_pages import huge_bytes_of


class WholeModel:
    def __init__(self, path: str, threads: int, context_tokens: int) -> None:
        self._path = Path(path)
        llama_cpp.llama_backend_init()
        model_params = llama_cpp.llama_model_default_params()
        self._model = llama_cpp.llama_model_load_from_file(path.encode(), model_params)
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = context_tokens
        params.n_threads = params.n_threads_batch = threads
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        self._n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))

    def run(self, prompt: list[int], tokens: int) -> dict[str, Any]:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)
        drawn: list[int] = []
        started = perf_counter()
        self._decode(prompt)
        drawn.append(self._likeliest())
        first_s = perf_counter() - started
        while len(drawn) < tokens:
            self._decode(drawn[-1:])
            drawn.append(self._likeliest())
        seconds = perf_counter() - started
        huge_mb = round(huge_bytes_of(self._path) / 1e6, 1)
        return {"seconds": seconds, "first_s": first_s, "token_ids": drawn, "huge_mb": huge_mb}

    def _decode(self, tokens: list[int]) -> None:
        array = (llama_cpp.llama_token * len(tokens))(*tokens)
        if llama_cpp.llama_decode(self._context, llama_cpp.llama_batch_get_one(array, len(tokens))) != 0:
            raise RuntimeError("llama_decode failed")

    def _likeliest(self) -> int:
        logits = llama_cpp.llama_get_logits_ith(self._context, -1)
        return int(np.ctypeslib.as_array(logits, shape=(self._n_vocab,)).argmax())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--context-tokens", type=int, default=4096)
    options = parser.parse_args()
    silence = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(silence, ctypes.c_void_p(0))
    model = WholeModel(options.model, options.threads, options.context_tokens)
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(model.run(request["prompt"], request["tokens"])), flush=True)


if __name__ == "__main__":
    main()
