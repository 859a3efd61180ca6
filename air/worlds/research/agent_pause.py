"""Stops an agent's processes while its artefact (the files that it hands in) is graded.

The time of a grading is not the agent's time, so no process that the agent left behind may work meanwhile.
Nor may such processes slow the grader down: a grader that exceeds its time limit even on an empty artefact
counts as a failure of the machine, and its episode is left out of training.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from air.aio import wait_shielded
from air.errors import BoxCommandError, BoxDiedError, ConfigError
from air.sandbox.contract.box import Box

_log = logging.getLogger(__name__)


@asynccontextmanager
async def paused(box: Box) -> AsyncIterator[bool]:
    """Async context manager: stops all processes of `box` during the `with` block, and yields whether they
    stand still.

    They do not stand still if the kind of box cannot be frozen, or if they did not stop in time. The
    processes of a box that has ended stand still; the next use of the box reports the end.
    """
    still = await _freeze(box)
    try:
        yield still
    finally:
        if still:
            await wait_shielded(_thaw(box))


async def _freeze(box: Box) -> bool:
    try:
        await box.freeze()
    except BoxDiedError:
        return True
    except (BoxCommandError, ConfigError) as error:
        _log.warning("an agent's processes run on during its grading: %s", error)
        return False
    return True


async def _thaw(box: Box) -> None:
    with suppress(BoxDiedError):
        await box.thaw()
