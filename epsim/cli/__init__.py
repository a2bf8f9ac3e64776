"""The command line: the only place that reads argv and the environment, and prints.

Exit codes: 0 good, 1 mismatch or failed check, 2 bad input, 3 the environment lacks something.
"""

import io
import sys
from collections.abc import Sequence
from typing import NoReturn

from cyclopts import App, CycloptsError

import epsim
from epsim.cli.calibrate import calibrate
from epsim.cli.cluster import cluster
from epsim.cli.conform import conform
from epsim.cli.debug import debug
from epsim.cli.exchange import app as exchange_app
from epsim.cli.explain import explain
from epsim.cli.inspect import inspect
from epsim.cli.predict import predict
from epsim.cli.profiles import profiles
from epsim.cli.simulate import simulate
from epsim.cli.sweep import sweep
from epsim.cli.topo import app as topo_app
from epsim.cli.validate import validate
from epsim.cli.whatif import whatif
from epsim.cli.workload import workload
from epsim.errors import MissingExtraError

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_ENVIRONMENT = 3

app = App(
    name="epsim",
    version=epsim.__version__,
    help="""Predict, test and debug MoE dispatch and combine on Ascend 950 supernodes.

    - `epsim predict` what will dispatch and combine give on this cluster, and what limits them?
    - `epsim simulate` the same on the real links, as fluid or as events, with a timeline
    - `epsim cluster` many groups on one network, up to 262,144 cards
    - `epsim workload` other traffic on the same machine: collectives, pipelines, Engram
    - `epsim whatif` what does a lost plane, a slow rank or a wrong cable cost?
    - `epsim explain` what happens to one token, and why does it land there?
    - `epsim inspect` is this routing balanced, and does it fit?
    - `epsim debug` is what a run dumped right, and where is it wrong first?
    - `epsim conform` does a backend do what the reference says, whatever it is given?
    - `epsim validate` how far are the predictions from public measurements?
    - `epsim sweep` which parameter moves the answer most, and which points does no other beat?
    - `epsim topo show ubl128` what is connected to what?
    - `epsim exchange export` what do other simulators say of the same case?

    Every number of a prediction can be replaced: `--set hbm_rate=3.2TB/s`; `epsim profiles` lists them.""",
)
# These modules are light: what a command needs is imported when it runs, so `epsim --help` stays fast.
for _command in (
    predict,
    simulate,
    validate,
    calibrate,
    explain,
    inspect,
    debug,
    sweep,
    workload,
    cluster,
    profiles,
    whatif,
    conform,
):
    app.command(_command)
app.command(topo_app, name="topo")
app.command(exchange_app, name="exchange")


def run(tokens: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Args:
      tokens: arguments without the program's name; None = those of the process.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Tables have lines and a plus-minus sign; a terminal without them gets question marks, no traceback.
        sys.stdout.reconfigure(errors="replace")
    try:
        result = app(
            tokens, exit_on_error=False, print_error=False, result_action="return_value", help_on_error=False
        )
        sys.stdout.flush()
    except CycloptsError as error:
        return _refuse(_one_line(str(error)))
    except MissingExtraError as error:
        print(f"epsim: {error}", file=sys.stderr)
        return EXIT_ENVIRONMENT
    except BrokenPipeError:
        # The reader (head, less) has enough; that is no error of ours.
        sys.stdout = None
        return 0
    except OSError as error:
        sys.stdout = None
        print(f"epsim: output cannot be written: {error.strerror}", file=sys.stderr)
        return EXIT_ENVIRONMENT
    except MemoryError:
        print("epsim: the machine has too little memory for this case", file=sys.stderr)
        return EXIT_ENVIRONMENT
    except ValueError as error:
        if not _is_user_error(error):
            raise
        return _refuse(_one_line(str(error)))
    except RuntimeError as error:
        return _report_failed(error)
    return result if isinstance(result, int) else 0


def _is_user_error(error: ValueError) -> bool:
    """Tell bad input from a bug; the classes are only imported when there is an error."""
    from epsim.errors import InputError
    from native.errors import NativeInputError
    from reference.errors import ConfigError
    from topology.errors import TopologyError

    return isinstance(error, InputError | ConfigError | NativeInputError | TopologyError)


def _report_failed(error: RuntimeError) -> int:
    """Print a stuck run, a kernel that does not compile, or what the machine lacks; all else is a bug."""
    from epsim.report.whatif import stuck_text
    from epsim.sim.clock import StuckError
    from native.errors import CompileError, NativeEnvironmentError

    if not isinstance(error, StuckError | CompileError | NativeEnvironmentError):
        raise error
    print(f"epsim: {stuck_text(error) if isinstance(error, StuckError) else error}", file=sys.stderr)
    return EXIT_ENVIRONMENT if isinstance(error, NativeEnvironmentError) else EXIT_FAILED


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _refuse(sentence: str) -> int:
    print(f"epsim: {sentence}", file=sys.stderr)
    return EXIT_BAD_INPUT


def main() -> NoReturn:
    """Run the `epsim` command and exit with its code."""
    sys.exit(run())
