"""`python shell.py PROGRAM ARGUMENTS…`: as much of a shell as jobs need. Says how a job stopped or ended, and
what it left the terminal like; a line of input lets it go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import termios


def modes() -> str:
    flags = termios.tcgetattr(0)[3]
    return f"echo={bool(flags & termios.ECHO)} canonical={bool(flags & termios.ICANON)}"


def foreground(group: int) -> None:
    os.tcsetpgrp(0, group)


def begin() -> None:
    """In the job: a group of its own, and no signal ignored, though these tests may run under nohup."""
    os.setpgrp()
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


if __name__ == "__main__":
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # the terminal is taken back from the background
    job = subprocess.Popen(sys.argv[1:], preexec_fn=begin)
    foreground(job.pid)
    while True:
        status = os.waitpid(job.pid, os.WUNTRACED)[1]
        foreground(os.getpgrp())
        if not os.WIFSTOPPED(status):
            print(f"[ended {os.waitstatus_to_exitcode(status)} {modes()}]", flush=True)
            break
        print(f"[stopped {modes()}]", flush=True)
        input()
        foreground(job.pid)
        os.kill(job.pid, signal.SIGCONT)
