"""Processes that tokenize blocks of documents: the parent's code, and that of a child.

Messages are pickles, because tokens are binary. A child ends when the parent ends, even if the parent is killed while a
block is encoded. It imports no jax, and encodes with one thread.
"""

import os
import pickle
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from typing import Any, NoReturn

from taetpu.core.child_process import Child, child_command, read_requests
from taetpu.core.errors import UserError
from taetpu.core.jax_setup import cpu_cores
from taetpu.data.document_encoding import Block, Encoded, Encoder, Job
from taetpu.data.tokenizers.library import load_tokenizer

MAX_CHILDREN = 8
"""Maximum number of children. One process reads the documents for all of them."""
WAITING = 2
"""Number of blocks for each child that are encoded or wait for it."""


def encode_blocks(
    job: Job, blocks: Iterable[Block], children: int | None = None
) -> Iterator[tuple[Block, dict[str, Encoded]]]:
    """Yield each block with its encoded documents by split, in the order of the blocks.

    Args:
        job: what all blocks have in common.
        blocks: the blocks, which are read as the children need them.
        children: the number of processes; by default one for each core, at most `MAX_CHILDREN`.

    Raises:
        UserError: if a document cannot be encoded, or if a child is killed.
    """
    count = children or min(cpu_cores(), MAX_CHILDREN)
    waiting = deque[tuple[Block, Child]]()
    with ExitStack() as stack:
        pool: list[Child] = []
        for _ in range(count):
            child = Child(child_command(__name__), {**os.environ, "TOKENIZERS_PARALLELISM": "false"})
            stack.callback(child.close)
            pool.append(child)
        for child in pool:
            _send(child, job)
        for number, block in enumerate(blocks):
            child = pool[number % count]
            _send(child, block)
            waiting.append((block, child))
            if len(waiting) == WAITING * count:
                yield _receive(*waiting.popleft())
        while waiting:
            yield _receive(*waiting.popleft())


def _send(child: Child, message: Any) -> None:
    try:
        pickle.dump(message, child.process.stdin.buffer, protocol=5)  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
        child.process.stdin.buffer.flush()  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
    except BrokenPipeError:
        _explain(child)


def _receive(block: Block, child: Child) -> tuple[Block, dict[str, Encoded]]:
    try:
        answer = pickle.load(child.process.stdout.buffer)  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
    except (EOFError, pickle.UnpicklingError):
        _explain(child)
    if isinstance(answer, tuple):
        problem, path, remedy = answer
        raise UserError(problem, path=path, remedy=remedy)
    return block, answer


def _explain(child: Child) -> NoReturn:
    try:
        child.fail()
    except MemoryError as error:
        problem = f"a process that tokenizes the corpus was {error}, perhaps for lack of memory"
        raise UserError(problem, remedy="Run the same command again. Tokens that were written are kept.") from None


def _messages() -> Iterator[Any]:
    """Yield the parent's messages until it ends."""
    with suppress(EOFError, pickle.UnpicklingError):
        while True:
            yield pickle.load(sys.stdin.buffer)


def main() -> None:
    """Answer each block with its encoded documents, or with the parts of a `UserError`."""
    messages = read_requests(_messages())
    job: Job = next(messages)
    tokenizer = load_tokenizer(job.tokenizer)
    tokenizer.set_parse_special(not job.special_is_text)
    encoder = Encoder(job, tokenizer)
    for block in messages:
        try:
            answer: Any = encoder.encode(block)
        except UserError as error:
            answer = error.problem, error.path, error.remedy
        pickle.dump(answer, sys.stdout.buffer, protocol=5)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
