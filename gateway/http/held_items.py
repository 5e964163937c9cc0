"""One request past a bad socket: its items read and proven, the commands they make, the answers.

Pure, under `held`, which gives the commands to the lanes and waits. Each item is judged on its own
and answered in its place: refused here, by what the store has said, or as `unavailable` when that
has not come in time.
"""

import hashlib
from typing import Any, TypeAlias

import msgspec
from msgspec import Raw

from gateway.http.answers import error_part, http_status
from gateway.lanes import Refused
from gateway.worker.answers import Word, command_result
from gateway.worker.dialect import Operation
from gateway.worker.lease_secret import KeyRing
from orbit_sdk.protocol.bodies import BodyError, finish_hash
from orbit_sdk.protocol.errors import ErrorCode
from orbit_sdk.protocol.held import (
    FinishItem,
    HeldBody,
    RenewItem,
    decode_finish_item,
    decode_renew_item,
)
from store.commands import (
    NO_SESSION,
    AttemptCommand,
    CommandOutcome,
    FinishCommand,
    InstanceProof,
)

Command: TypeAlias = AttemptCommand | FinishCommand


class HeldItems:
    """The items of one request, in order. `operation` is RENEW or FINISH."""

    def __init__(
        self, operation: Operation, namespace_id: str, body: HeldBody, ring: KeyRing
    ) -> None:
        self.commands: dict[int, Command] = {}
        """By the place of its item, what is to be asked of the store."""
        self.missing = 0
        """Commands without an answer so far."""
        self.unproven: list[str] = []
        """Attempts for which there was no valid proof."""
        secret_hash = hashlib.sha256(body.instance_secret.encode()).digest()
        self.proof = InstanceProof(body.instance_id, secret_hash)
        self._is_report = operation is Operation.FINISH
        self._word: Word = "finish" if self._is_report else "renew"
        self._namespace_id = namespace_id
        self._ring = ring
        self._found: list[dict[str, Any] | None] = []

    def read(self, raw: Raw) -> None:
        """Take the next item: a command if it proves its lease, else its refusal (INV-21)."""
        index = len(self._found)
        try:
            item = decode_finish_item(raw) if self._is_report else decode_renew_item(raw)
        except BodyError as error:
            part = error_part(error.code, error.reason, error.field)
            self._found.append(_refused(index, error.code, part))
            return
        if not self._ring.verify(item.attempt_id, item.epoch, item.lease_secret):
            self._found.append(_refused(index, ErrorCode.ATTEMPT_NOT_FOUND))
            self.unproven.append(item.attempt_id)
            return
        self._found.append(None)
        self.commands[index] = self._command(item)
        self.missing += 1

    def refuse_all(self, code: ErrorCode) -> None:
        """Refuse what would be asked."""
        for index in self.commands:
            self._found[index] = _refused(index, code)
        self.commands.clear()
        self.missing = 0

    def answered(self, index: int, outcome: CommandOutcome | Refused) -> None:
        """What became of a command; once for each."""
        if isinstance(outcome, Refused):
            self._found[index] = _refused(index, outcome.code)
        elif outcome.code != "ok":
            self._found[index] = _refused(index, ErrorCode(outcome.code))
        else:
            result = msgspec.structs.asdict(command_result(self._word, outcome))
            self._found[index] = {"index": index, "status": 200, **result}
        self.missing -= 1

    def results(self) -> list[dict[str, Any]]:
        """One result an item, as far as is known; the rest may be asked again."""
        late = ErrorCode.UNAVAILABLE
        return [
            _refused(index, late) if found is None else found
            for index, found in enumerate(self._found)
        ]

    def _command(self, item: RenewItem) -> Command:
        epoch = int(item.epoch)
        if not isinstance(item, FinishItem):
            return AttemptCommand(
                self._namespace_id,
                NO_SESSION,
                0,
                item.task_id,
                item.attempt_id,
                epoch,
                item.message_id,
                self.proof,
            )
        result = bytes(item.result)
        error_code = item.error_code or ""
        return FinishCommand(
            self._namespace_id,
            NO_SESSION,
            item.task_id,
            item.attempt_id,
            epoch,
            item.message_id,
            finish_hash(item.outcome, error_code, result),
            item.outcome,
            error_code or None,
            result,
            self.proof,
        )


def _refused(index: int, code: ErrorCode, part: Any = None) -> dict[str, Any]:
    return {
        "index": index,
        "status": http_status(code),
        "error": error_part(code) if part is None else part,
    }
