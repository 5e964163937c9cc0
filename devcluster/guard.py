"""The first moments of a child process: give up rights, tie its life to the parent, become it.

Run as a script by `devcluster.processes`, never imported. It exists because both steps must
happen between fork and exec, where running Python code (`preexec_fn`) is unsafe beside threads.
Promises: the pid stays the same; on Linux the kernel sends the child `parent_death_signal` when
the thread that started it ends, also when the parent is killed with SIGKILL; a parent that died
before that was arranged is noticed. Elsewhere the child may outlive a killed parent.

    python -I -S guard.py PARENT_PID PARENT_DEATH_SIGNAL UID GID PROGRAM [ARGUMENT ...]

UID and GID are "-" to stay who we are.
"""

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent_pid, parent_death_signal, uid, gid, program, *arguments = sys.argv[1:]
    if uid != "-":
        os.setgroups([])
        os.setgid(int(gid))
        os.setuid(int(uid))
    # After the change of user, which clears it.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(parent_death_signal), 0, 0, 0)
        if os.getppid() != int(parent_pid):
            sys.exit(1)
    os.execv(program, [program, *arguments])


if __name__ == "__main__":
    main()
