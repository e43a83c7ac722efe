"""Process 1 of a running cluster: collects the children that daemons leave, and nothing else."""

import os
import signal

signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
# blocked, so that one that comes while we collect stays pending and ends the next wait
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
while True:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
    signal.sigwaitinfo({signal.SIGCHLD})
