package pgtest

import (
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// process is a running server.
type process struct {
	cmd     *exec.Cmd
	done    chan struct{} // closed when it has exited; cmd.ProcessState then says how
	logFrom int64         // where its part of the log begins
}

// startProcess runs the command from a goroutine that keeps its thread until the server has exited: Linux sends the
// parent-death signal when the thread that forked ends, not when the process does.
func startProcess(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		defer close(p.done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // says what ProcessState says
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// end sends the signal and waits for the exit; a server that does not heed it is killed.
func (p *process) end(signal syscall.Signal) {
	_ = p.cmd.Process.Signal(signal) // fails only when it has exited already
	patience := time.NewTimer(stopTimeout)
	defer patience.Stop()
	select {
	case <-p.done:
	case <-patience.C:
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}
