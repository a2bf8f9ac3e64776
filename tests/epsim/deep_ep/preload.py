"""What the server of test processes imports once; nothing here starts a thread."""

import reference.bucket
import reference.engram
import reference.pipeline  # noqa: F401
