// Command pause is the first process of a pod's sandbox: it holds the pod's namespaces open, collects the exit status
// of orphaned processes, and ends when it is asked to.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGCHLD, syscall.SIGTERM, syscall.SIGINT)
	// A child may have ended before the line above: its signal is lost, its status is not.
	collectChildren()
	for received := range signals {
		if received != syscall.SIGCHLD {
			return
		}
		collectChildren()
	}
}

// collectChildren takes every status there is: several children may share one SIGCHLD.
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
