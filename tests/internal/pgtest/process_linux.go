package pgtest

import "syscall"

// dieWithParent has the server shut down at once when this process is killed, which runs no clean-up.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGQUIT }
