"""`quire run-batch -i IN -o OUT [MODEL]`: a file of requests, computed without a server.

What was computed is in the file of results, so the same command goes on where it ended.
"""

import argparse
import os
import sys

from quire.cli.batch.batch_input import STANDARD, BatchInput, CheckedInput
from quire.cli.batch.batch_output import BatchOutput, Existing, batch_id_of
from quire.cli.batch.batch_progress import BatchProgress
from quire.cli.command_parser import CommandParser, number
from quire.cli.options import add_model_options, add_named_options
from quire.cli.setting_values import read_settings
from quire.config import Settings
from quire.errors import BatchFileError, UsageError

SERVER_OPTIONS = ("lenient_fields", "max_body_bytes", "shutdown_timeout_s")
ENVELOPE_BYTES = 64 * 1024  # of a line, beside the body
HAS_FAILURES = 3  # exit status: all requests are done, and some failed
SIGNALLED = 128  # exit status, less the number of the signal


def add_arguments(parser: CommandParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "-i", "--input-file", metavar="FILE", required=True, help="requests; - is standard input"
    )
    parser.add_argument(
        "-o", "--output-file", metavar="FILE", required=True, help="results; - is standard output"
    )
    existing = parser.add_mutually_exclusive_group()
    existing.add_argument(
        "--resume",
        action="store_true",
        help="go on with a file of results, which must exist; without this flag it may",
    )
    existing.add_argument(
        "--overwrite", action="store_true", help="replace the file of results, whatever it has"
    )
    existing.add_argument(
        "--retry-failed",
        action="store_true",
        help="go on, and compute again the requests with the status 408, 429 or 5xx",
    )
    parser.add_argument(
        "--max-concurrency",
        type=number(int, 1),
        metavar="N",
        help="requests in flight; default: twice those that the engine runs at the same time",
    )
    add_model_options(parser)
    add_named_options(parser, "Requests", SERVER_OPTIONS)


def run(arguments: argparse.Namespace) -> int:
    """Compute the requests that have no result yet; return 3 if some failed."""
    settings = read_settings(arguments)
    existing = _existing(arguments)
    max_line_bytes = settings.server.max_body_bytes + ENVELOPE_BYTES
    requests = BatchInput.open(arguments.input_file, max_line_bytes)
    try:
        checked = requests.check()
        model = settings.model.served_model_name or settings.model.model
        batch_id = batch_id_of(checked, model)
        results = BatchOutput.open(arguments.output_file, batch_id, checked, existing)
        try:
            if requests.is_same_file(results.fileno()):
                raise BatchFileError("the files of requests and of results are the same file")
            return _compute(arguments, settings, requests, checked, results)
        finally:
            results.close()
    finally:
        requests.close()


def _existing(arguments: argparse.Namespace) -> Existing:
    chosen = {
        "--resume": (arguments.resume, Existing.RESUME),
        "--retry-failed": (arguments.retry_failed, Existing.RETRY),
        "--overwrite": (arguments.overwrite, Existing.OVERWRITE),
    }
    flag, existing = next(
        ((flag, kind) for flag, (is_set, kind) in chosen.items() if is_set),
        ("", Existing.CONTINUE),
    )
    if arguments.output_file == STANDARD and existing in (Existing.RESUME, Existing.RETRY):
        raise UsageError(
            f"{flag} needs a file: what standard output got cannot be read",
            hint="see `quire run-batch --help`",
        )
    return existing


def _compute(
    arguments: argparse.Namespace,
    settings: Settings,
    requests: BatchInput,
    checked: CheckedInput,
    results: BatchOutput,
) -> int:
    """Compute what is left, with an engine if anything is; return the exit status."""
    stream = None if arguments.quiet else sys.stderr
    if results.num_done == checked.num_requests:
        results.renew()
        BatchProgress(results, checked.num_requests, stream).end()
        return _status(results)
    from quire.cli.batch.batch_engine import compute_batch  # loads the engine

    ended_by = compute_batch(
        settings, requests, checked, results, arguments.max_concurrency, stream
    )
    return SIGNALLED + ended_by if ended_by is not None else _status(results)


def _status(results: BatchOutput) -> int:
    return HAS_FAILURES if results.num_failed else os.EX_OK
