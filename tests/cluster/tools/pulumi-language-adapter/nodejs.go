package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"

	"github.com/pulumi/pulumi/sdk/v3/nodejs/npm"
	pulumirpc "github.com/pulumi/pulumi/sdk/v3/proto/go"
)

// nodejs runs programs in TypeScript and JavaScript.
type nodejs struct{}

func (nodejs) flags(_ context.Context, info *pulumirpc.ProgramInfo) ([]string, error) {
	var flags []string
	for _, name := range []string{"typescript", "tsconfig", "nodeargs"} {
		if value := option(info, name); value != "" {
			flags = append(flags, fmt.Sprintf("-%s=%s", name, value))
		}
	}
	return flags, nil
}

func (nodejs) findsPlugins(*pulumirpc.ProgramInfo) bool { return true }

// install runs the package manager in the root of the workspace if the program is a member of a workspace.
func (nodejs) install(ctx context.Context, request *pulumirpc.InstallDependenciesRequest, output streams) error {
	directory := request.GetInfo().GetProgramDirectory()
	root, err := npm.FindWorkspaceRoot(directory)
	switch {
	case err == nil:
		fmt.Fprintf(output.stdout, "Detected workspace root at %s\n", root)
		directory = root
	case !errors.Is(err, npm.ErrNotInWorkspace):
		return fmt.Errorf("failure while trying to find workspace root: %w", err)
	}
	manager := npm.PackageManagerType(option(request.GetInfo(), "packagemanager"))
	if _, err := npm.Install(ctx, manager, directory, false, output.stdout, output.stderr); err != nil {
		return fmt.Errorf("npm install failed: %w", err)
	}
	return nil
}

func (nodejs) plugin(ctx context.Context, request *pulumirpc.RunPluginRequest) (*command, error) {
	directory := request.GetInfo().GetProgramDirectory()
	script, arguments := "@pulumi/pulumi/cmd/run-plugin", append([]string{directory}, request.GetArgs()...)
	if request.GetKind() == analyzer {
		script, arguments = "@pulumi/pulumi/cmd/run-policy-pack", append(append([]string{}, request.GetArgs()...), directory)
	}
	find := exec.CommandContext(ctx, "node", "-e", "console.log(require.resolve(process.argv[1]))", script)
	find.Dir = directory
	path, err := find.Output()
	if err != nil {
		return nil, fmt.Errorf("failed to find the module %s in %s: install its dependencies", script, directory)
	}
	plugin := exec.CommandContext(ctx, "node", append([]string{strings.TrimSpace(string(path))}, arguments...)...)
	plugin.Dir = request.GetPwd()
	if request.GetKind() == analyzer {
		// A policy pack reads its version from the package.json in the working directory.
		plugin.Dir = directory
	}
	plugin.Env = append(append([]string{}, request.GetEnv()...), "PULUMI_NODEJS_TYPESCRIPT=true")
	return &command{Cmd: plugin}, nil
}

// option returns an option of the program as text, or an empty string if the option is not set.
func option(info *pulumirpc.ProgramInfo, name string) string {
	value, exists := info.GetOptions().AsMap()[name]
	if !exists {
		return ""
	}
	return fmt.Sprint(value)
}
