"""The messages (frames) from the guest, air's program in a box, to the host: a queue of frames, and sources
that make further frames only when the queue is empty.

Standard library only, Python >= 3.8, no import of `air`.
"""

from __future__ import annotations

import collections
import os
import select

from air.sandbox.guest import frames
from air.sandbox.guest.files import Refused
from air.sandbox.guest.running_commands import reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from air.sandbox.guest.files import AnswerFrames

JOINED = 1 << 18
"""The maximum number of bytes that are written at once when several small frames are joined. Joining is
worthwhile because each write wakes all processes between the guest (this program) and the host."""


class FrameSource:
    """The interface of an object that makes a message (frame) for the host only when asked: when the stream
    to the host can take more bytes."""

    ready: collections.deque[Any]
    """The queue of things from which the source can make a frame now, for example file descriptors with
    unread output. Empty if the source has nothing to send."""

    def pull(self) -> None:
        """Makes one frame (message for the host) and queues it in the `Outbox`. Does nothing if this source
        has nothing to send."""
        raise NotImplementedError


class Outbox:
    """The queue of messages (frames) for the host that are not yet written to the stream, standard output."""

    def __init__(self, epoll: select.epoll) -> None:
        self.epoll = epoll
        self.frames: collections.deque[memoryview] = collections.deque()
        self.sources: list[FrameSource] = []
        self.unsent = self.writing = False

    def send(self, header: dict[str, Any], body: bytes = b"") -> None:
        """Queues a frame (message) for the host, and makes the event loop write it."""
        self.queue(header, body)
        self.unsent = True

    def queue(self, header: dict[str, Any], body: bytes = b"") -> None:
        """Queues a frame (message) for the host. Unlike `send`, this method does not make the event loop
        write the frame, so the caller must make sure that `flush` is called."""
        self.frames.append(memoryview(frames.frame(header, body)))

    def flush(self) -> None:
        """Writes as many queued bytes as the stream to the host accepts. If no frame is queued, first asks
        each source (a `FrameSource`, which makes frames on request) to queue one frame."""
        self.unsent = False
        if len(self.frames) > 1:
            self._join()
        if not self.frames:
            for source in self.sources:
                source.pull()
        while self.frames:
            try:
                sent = os.write(1, self.frames[0])
            except BlockingIOError:
                break
            self.frames[0] = self.frames[0][sent:]
            if not self.frames[0]:
                self.frames.popleft()
        if self.writing != bool(self.frames or any(source.ready for source in self.sources)):
            self.writing = not self.writing
            self.epoll.modify(1, select.EPOLLOUT if self.writing else 0)

    def _join(self) -> None:
        small: list[memoryview] = []
        size = 0
        while self.frames and (size := size + len(self.frames[0])) <= JOINED:
            small.append(self.frames.popleft())
        if small:
            self.frames.appendleft(memoryview(b"".join(small)))


class MultiFrameAnswers(FrameSource):
    """The `FrameSource` (maker of messages on request) for answers that consist of several frames, such as
    the files that a `get` request reads piece by piece. Unfinished requests take turns."""

    def __init__(self, outbox: Outbox) -> None:
        self.outbox = outbox
        self.ready: collections.deque[tuple[int, AnswerFrames]] = collections.deque()

    def add(self, ident: int, answer: AnswerFrames) -> None:
        self.ready.append((ident, answer))
        self.outbox.flush()

    def abort(self, target: int) -> None:
        """Ends the request with the id `target`, because nobody waits for its answer any more."""
        for ident, answer in list(self.ready):
            if ident == target:
                self.ready.remove((ident, answer))
                answer.close()

    def pull(self) -> None:
        if not self.ready:
            return
        ident, answer = self.ready.popleft()
        try:
            header, body = next(answer)
            self.ready.append((ident, answer))
            self.outbox.queue(dict(header, id=ident, more=True), body)
        except StopIteration:
            self.outbox.queue({"id": ident})
        except (OSError, Refused, ValueError) as error:
            self.outbox.queue({"id": ident, "error": reason(error)})
