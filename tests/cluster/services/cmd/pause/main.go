// Command pause is the first process of a pod's sandbox. It keeps the namespaces of the pod open, reaps orphaned
// processes, and exits on SIGTERM.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGCHLD, syscall.SIGTERM, syscall.SIGINT)
	// The signal of a child that ended before the call above is lost. Its exit status is still available.
	reapChildren()
	for received := range signals {
		if received != syscall.SIGCHLD {
			return
		}
		reapChildren()
	}
}

// reapChildren reaps all children that have ended. Several of them may share one SIGCHLD.
func reapChildren() {
	for {
		process, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || process <= 0 {
			return
		}
	}
}
