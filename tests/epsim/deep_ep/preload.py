"""What the server of test processes imports once; nothing here starts a thread."""

import reference.collectives.bucket
import reference.collectives.engram
import reference.collectives.pipeline  # noqa: F401
