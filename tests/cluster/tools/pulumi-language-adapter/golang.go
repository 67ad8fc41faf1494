package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	pulumirpc "github.com/pulumi/pulumi/sdk/v3/proto/go"
)

// golang runs programs in Go.
type golang struct{}

func (golang) flags(_ context.Context, info *pulumirpc.ProgramInfo) ([]string, error) {
	var flags []string
	for _, name := range []string{"binary", "buildTarget"} {
		if value := option(info, name); value != "" {
			flags = append(flags, fmt.Sprintf("-%s=%s", name, value))
		}
	}
	return flags, nil
}

func (golang) findsPlugins(*pulumirpc.ProgramInfo) bool { return true }

func (golang) install(ctx context.Context, request *pulumirpc.InstallDependenciesRequest, output streams) error {
	tidy := exec.CommandContext(ctx, "go", "mod", "tidy")
	tidy.Dir = request.GetInfo().GetProgramDirectory()
	tidy.Stdout, tidy.Stderr = output.stdout, output.stderr
	if err := tidy.Run(); err != nil {
		return fmt.Errorf("`go mod tidy` failed to install dependencies: %w", err)
	}
	return nil
}

func (golang) plugin(ctx context.Context, request *pulumirpc.RunPluginRequest) (*command, error) {
	folder, err := os.MkdirTemp("", "pulumi-go")
	if err != nil {
		return nil, err
	}
	cleanUp := func() { _ = os.RemoveAll(folder) }
	program := filepath.Join(folder, "plugin")
	build := exec.CommandContext(ctx, "go", "build", "-o", program)
	build.Dir = request.GetInfo().GetProgramDirectory()
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		cleanUp()
		return nil, fmt.Errorf("unable to run `go build`: %w", err)
	}
	plugin := exec.CommandContext(ctx, program, request.GetArgs()...)
	plugin.Env = request.GetEnv()
	return &command{Cmd: plugin, cleanUp: cleanUp}, nil
}
