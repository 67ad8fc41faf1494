package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/pulumi/pulumi/sdk/v3/go/common/util/rpcutil"
	pulumirpc "github.com/pulumi/pulumi/sdk/v3/proto/go"
)

// maxDrain limits the wait for the output of a host that has ended, because a process of the program may keep the pipe
// open.
const maxDrain = 2 * time.Second

// host is a language host of an older version.
type host struct {
	path      string
	arguments []string
	engine    string
}

// with starts the host, calls it and stops it. It returns after all output of the program is written, because the
// engine may discard output that arrives after the response.
func (host host) with(
	ctx context.Context, flags []string, directory string, call func(pulumirpc.LanguageRuntimeClient) error,
) error {
	arguments := append(append(append([]string{}, host.arguments...), flags...), host.engine)
	process := exec.CommandContext(ctx, host.path, arguments...)
	process.Dir = directory
	process.Stderr = os.Stderr
	process.WaitDelay = maxDrain
	stdout, err := process.StdoutPipe()
	if err != nil {
		return err
	}
	if err := process.Start(); err != nil {
		return fmt.Errorf("failed to start %s: %w", host.path, err)
	}
	lines := bufio.NewReader(stdout)
	copied := make(chan struct{})
	defer func() {
		_ = process.Process.Kill()
		select {
		case <-copied:
		case <-time.After(maxDrain):
		}
		_ = process.Wait()
	}()
	port, err := lines.ReadString('\n')
	go func() {
		defer close(copied)
		_, _ = io.Copy(os.Stdout, lines)
	}()
	if err != nil {
		return fmt.Errorf("%s did not print its port: %w", host.path, err)
	}
	connection, err := grpc.NewClient(
		"127.0.0.1:"+strings.TrimSpace(port), grpc.WithTransportCredentials(insecure.NewCredentials()), rpcutil.GrpcChannelOptions(),
	)
	if err != nil {
		return err
	}
	defer connection.Close()
	return call(pulumirpc.NewLanguageRuntimeClient(connection))
}
