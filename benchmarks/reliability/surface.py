"""R17, R18 and R23: open ports and routes, code that must not be there, and times of the start."""

import ast
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
from process_tree import listening_addresses
from row import Limits, Measured
from served import serve

ROOT = Path(__file__).parents[2]
FORBIDDEN_IMPORTS = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal"}
FORBIDDEN_CALLS = {"eval", "exec", "torch.load"}
PATHS = (
    "/", "/livez", "/readyz", "/health", "/metrics", "/version", "/v1", "/v1/models",
    "/v1/models/demo", "/v1/plugins", "/v1/completions", "/v1/chat/completions", "/v1/embeddings",
    "/v1/responses", "/v1/messages", "/tokenize", "/detokenize", "/reset_prefix_cache", "/pause",
    "/admin", "/docs", "/openapi.json", "/nothing", "//livez", "/livez/", "/LIVEZ",
    "/%2e/v1/models", "/livez/../v1/models", "/livez;/v1/models", "/readyz%2f..%2fv1/models",
)  # fmt: skip
OPEN = {"/livez", "/readyz"}
NUM_RUNS = 7
KEY = "sk-canary-0123456789"


def listeners(limits: Limits) -> Measured:
    """List what a server with an engine process listens on, and what it serves without a key."""
    del limits
    with serve("--engine-process", environment={"QUIRE_API_KEY": KEY}) as server:
        listening = listening_addresses(server.pids)
        served = {
            path
            for path in PATHS
            for method in ("GET", "POST", "OPTIONS", "DELETE")
            for host in ("127.0.0.1", "localhost")
            if _status(server.url, path, method, host) not in (400, 401, 403, 404, 405)
        }
        is_in_ps = any(KEY in _command(pid) for pid in server.pids)
        is_in_log = KEY in server.log.read_text()
    num_others = len(listening) - 1
    text = (
        f"{num_others} listeners beside HTTP; {len(served)} paths answer without a key "
        f"({', '.join(sorted(served))}); the key is {'' if is_in_ps else 'not '}in the process "
        f"list and {'' if is_in_log else 'not '}in the log"
    )
    return Measured(text, num_others == 0 and served == OPEN and not (is_in_ps or is_in_log))


def _status(url: str, path: str, method: str, host: str) -> int:
    port = url.rpartition(":")[2]
    headers = {"host": f"{host}:{port}"}
    return httpx.request(method, f"{url}{path}", headers=headers, timeout=30).status_code


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def product_code(limits: Limits) -> Measured:
    """Look for pickle, eval and torch.load in the framework and its plugins."""
    del limits
    files = [*ROOT.glob("framework/quire/**/*.py"), *ROOT.glob("plugins/*/quire_*/**/*.py")]
    found = [f"{path.name}:{line}" for path in files for line in _offences(path)]
    return Measured(
        f"{len(found)} in {len(files)} files{': ' * bool(found)}{', '.join(found)}", not found
    )


def _offences(path: Path) -> Iterator[int]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                modules = [alias.name for alias in names]
            case ast.ImportFrom(module=str(module)):
                modules = [module]
            case ast.Call(func=function) if ast.unparse(function) in FORBIDDEN_CALLS:
                yield node.lineno
                continue
            case _:
                continue
        if {module.partition(".")[0] for module in modules} & FORBIDDEN_IMPORTS:
            yield node.lineno


def startup(limits: Limits) -> Measured:
    """Time `quire --help` and the start of a server."""
    del limits
    quire = str(Path(sys.executable).parent / "quire")
    times = []
    for _ in range(NUM_RUNS):
        started = time.monotonic()
        subprocess.run([quire, "--help"], stdout=subprocess.DEVNULL, check=True)
        times.append(time.monotonic() - started)
    ready = []
    for _ in range(3):
        with serve() as server:
            ready.append(server.ready_s)
    help_s, ready_s = statistics.median(times), statistics.median(ready)
    text = (
        f"`quire --help` {help_s:.2f} s, `quire serve demo` ready after {ready_s:.1f} s (medians)"
    )
    return Measured(text, help_s <= 0.3 and ready_s <= 3)
