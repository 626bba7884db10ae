"""Processes that are interrupted."""

import signal


def listen_to_ctrl_c() -> None:
    """As in a terminal; a background job, as a test run may be, hands down an ignored SIGINT."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
