"""The `olivine` command, also as `python -m olivine`.

Ctrl-C ends the program at once while it is imported: a KeyboardInterrupt would be a traceback there.
"""

# The part of `signal` that is built in: to import the rest takes long enough for a Ctrl-C.
import _signal  # type: ignore[import-not-found]

if _signal.getsignal(_signal.SIGINT) == _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)


def main() -> None:
    from olivine.cli.main import main

    main()


if __name__ == "__main__":
    main()
