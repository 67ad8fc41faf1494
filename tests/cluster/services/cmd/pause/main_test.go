package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// asPause makes the test binary run as pause, so the tests build no other program.
const asPause = "RUN_AS_PAUSE"

func TestMain(tests *testing.M) {
	if os.Getenv(asPause) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(tests.Run())
}

// start runs pause as the first process of a PID namespace, as in a pod.
func start(t *testing.T) *exec.Cmd {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("NOT RUN: creating a PID namespace needs root")
	}
	command := exec.Command("/proc/self/exe")
	command.Env = append(os.Environ(), asPause+"=1")
	command.Stderr = os.Stderr
	command.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = command.Process.Kill() })
	return command
}

// children returns the child processes of pause, including zombies.
func children(t *testing.T, pause *exec.Cmd) []string {
	t.Helper()
	pid := pause.Process.Pid
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, thread := range threads {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", pid, thread.Name()))
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, strings.Fields(string(text))...)
	}
	return found
}

func waitForChildren(t *testing.T, pause *exec.Cmd, count int) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for len(children(t, pause)) != count {
		if time.Now().After(deadline) {
			t.Fatalf("pause has the children %v, want %d", children(t, pause), count)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func TestPauseReapsOrphans(t *testing.T) {
	pause := start(t)
	orphans := exec.Command("nsenter", "--pid", "--target", fmt.Sprint(pause.Process.Pid),
		"sh", "-c", "for each in 1 2 3; do sleep 1 >/dev/null 2>&1 & done")
	if output, err := orphans.CombinedOutput(); err != nil {
		t.Fatalf("starting orphans: %v: %s", err, output)
	}
	waitForChildren(t, pause, 3)
	waitForChildren(t, pause, 0)
	if err := pause.Process.Signal(syscall.Signal(0)); err != nil {
		t.Fatalf("pause has ended: %v", err)
	}
}

func TestPauseExitsOnSignals(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		pause := start(t)
		ended := make(chan error, 1)
		go func() { ended <- pause.Wait() }()
		deadline := time.After(10 * time.Second)
		for asked := true; asked; {
			// The signal is sent repeatedly, because the kernel drops signals for the first process of a namespace until the
			// process has installed a handler.
			_ = pause.Process.Signal(signal)
			select {
			case <-ended:
				asked = false
			case <-time.After(50 * time.Millisecond):
			case <-deadline:
				t.Fatalf("pause did not end on %s", signal)
			}
		}
	}
}
