"""One family of errors: what happened, to which tensor or request, what was expected, and what fixes it."""

from __future__ import annotations


class TickError(Exception):
    """Base of every error that TickRT raises on purpose.

    `what` says what happened and what was expected; `fix` is the command or change that mends it (may be empty);
    `code` is a stable machine-readable name, used in HTTP problem documents and exit messages.
    """

    code = "tick_error"

    def __init__(self, what: str, *, fix: str = "") -> None:
        super().__init__(what if not fix else f"{what}\n  fix: {fix}")
        self.what = what
        self.fix = fix


class ConfigError(TickError):
    """A configuration file or a bundle says something that cannot be."""

    code = "config_error"


class RequestError(TickError):
    """A generation request that no tick could execute; `field` is its JSON-like path ("guidance.scale")."""

    code = "invalid_request"

    def __init__(self, what: str, *, field: str = "", fix: str = "") -> None:
        super().__init__(f"{field}: {what}" if field else what, fix=fix)
        self.field = field


class ShapeError(TickError):
    """A tensor's shape lies outside every shape range of its engine."""

    code = "shape_out_of_range"


class EngineError(TickError):
    """An engine cannot be opened or failed to execute. Recoverable unless it is an EngineDeadError."""

    code = "engine_error"


class EngineNotBuiltError(EngineError):
    """No engine for this graph and target; `fix` is the build command."""

    code = "engine_not_built"


class EngineMismatchError(EngineError):
    """An engine file that is not what its manifest says, or was built for something else."""

    code = "engine_mismatch"


class EngineDeadError(EngineError):
    """The execute failed in a way after which nothing can be trusted; every generation in flight ends."""

    code = "engine_dead"


class OutOfMemoryError(EngineError):
    """The device has no memory left for what was asked; what runs goes on."""

    code = "out_of_memory"


class CaptureError(EngineError):
    """Something cannot be part of a captured graph; it still runs when it is launched plainly."""

    code = "capture_failed"


class BuildError(TickError):
    """A graph could not be compiled."""

    code = "build_error"


class QueueFullError(TickError):
    """Slots and waiting places are taken; `retry_after_s` is when to come back."""

    code = "queue_full"

    def __init__(self, what: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(what)
        self.retry_after_s = retry_after_s


class DrainingError(TickError):
    """The loop is shutting down and takes no new work."""

    code = "draining"


class NonFiniteError(TickError):
    """A generation's latents became NaN or infinite; only that generation ends."""

    code = "nonfinite"


class CheckpointError(TickError):
    """A checkpoint file is damaged or belongs to another model."""

    code = "checkpoint_error"
