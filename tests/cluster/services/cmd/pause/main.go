// Command pause is the first process of a pod's sandbox: it keeps the namespaces of the pod open, reaps orphaned
// processes, and ends on SIGTERM.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGCHLD, syscall.SIGTERM, syscall.SIGINT)
	// A child that ended before the call above sent a signal that was lost; its exit status is still available.
	collectChildren()
	for received := range signals {
		if received != syscall.SIGCHLD {
			return
		}
		collectChildren()
	}
}

// collectChildren reaps all children that have ended: several of them may share one SIGCHLD.
func collectChildren() {
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
