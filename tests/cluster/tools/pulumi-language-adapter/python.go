package main

import (
	"context"
	"fmt"
	"os/exec"

	pulumirpc "github.com/pulumi/pulumi/sdk/v3/proto/go"
	"github.com/pulumi/pulumi/sdk/v3/python/toolchain"
)

// python runs programs in Python.
type python struct{}

// flags selects the virtual environment that the package manager has created.
func (python) flags(ctx context.Context, info *pulumirpc.ProgramInfo) ([]string, error) {
	manager, err := packageManager(info)
	if err != nil {
		return nil, err
	}
	environment, err := manager.VirtualEnvPath(ctx)
	if err != nil || environment == "" {
		return nil, err
	}
	return []string{"-virtualenv=" + environment, "-root=" + info.GetRootDirectory()}, nil
}

// findsPlugins returns whether the environment contains pip. The old host lists packages with pip, and environments of
// uv do not contain it.
func (python) findsPlugins(info *pulumirpc.ProgramInfo) bool {
	manager := option(info, "toolchain")
	return manager == "" || manager == "pip"
}

func (python) install(ctx context.Context, request *pulumirpc.InstallDependenciesRequest, output streams) error {
	manager, err := packageManager(request.GetInfo())
	if err != nil {
		return err
	}
	directory := request.GetInfo().GetProgramDirectory()
	return manager.InstallDependencies(
		ctx, directory, request.GetUseLanguageVersionTools(), true /*showOutput*/, output.stdout, output.stderr,
	)
}

func (python) plugin(ctx context.Context, request *pulumirpc.RunPluginRequest) (*command, error) {
	info := request.GetInfo()
	manager, err := packageManager(info)
	if err != nil {
		return nil, err
	}
	directory := info.GetProgramDirectory()
	var plugin *exec.Cmd
	if request.GetKind() == analyzer {
		arguments := append(append([]string{}, request.GetArgs()...), directory)
		plugin, err = manager.ModuleCommand(ctx, "pulumi.policy", arguments...)
	} else {
		plugin, err = manager.Command(ctx, append([]string{directory}, request.GetArgs()...)...)
	}
	if err != nil {
		return nil, err
	}
	environment, err := manager.VirtualEnvPath(ctx)
	if err != nil {
		return nil, err
	}
	// The CLI waits for the port in the output, which Python would buffer otherwise.
	plugin.Env = append(append([]string{}, request.GetEnv()...), "PYTHONUNBUFFERED=1")
	if environment != "" {
		plugin.Env = toolchain.ActivateVirtualEnv(plugin.Env, environment)
	}
	return &command{Cmd: plugin}, nil
}

func packageManager(info *pulumirpc.ProgramInfo) (toolchain.Toolchain, error) {
	options := toolchain.PythonOptions{
		Root:       info.GetRootDirectory(),
		ProgramDir: info.GetProgramDirectory(),
		Virtualenv: option(info, "virtualenv"),
	}
	switch name := option(info, "toolchain"); name {
	case "":
		options.Toolchain = toolchain.Auto
	case "pip":
		options.Toolchain = toolchain.Pip
	case "poetry":
		options.Toolchain = toolchain.Poetry
	case "uv":
		options.Toolchain = toolchain.Uv
	default:
		return nil, fmt.Errorf("unsupported toolchain option: %s", name)
	}
	return toolchain.ResolveToolchain(options)
}
