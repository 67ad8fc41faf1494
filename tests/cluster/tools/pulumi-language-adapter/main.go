// Command pulumi-language-adapter is a language host for the Pulumi CLI. The module proxy serves only old versions of
// Pulumi's language hosts, which do not read the options of a project from calls. The adapter converts the options to
// flags of an old host, which runs the program. As current hosts do, the adapter installs dependencies and runs plugins
// with the packages of the current Pulumi SDK for Go.
//
// The name of the executable selects the language, for example `pulumi-language-nodejs`. The old host has the same path
// with the suffix `.host`.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/pulumi/pulumi/sdk/v3/go/common/util/rpcutil"
	pulumirpc "github.com/pulumi/pulumi/sdk/v3/proto/go"
)

// maxIdle is the interval at which the adapter checks that the engine is running.
const maxIdle = 5 * time.Minute

// language contains the behavior that depends on the language.
type language interface {
	// flags returns the flags of the old host for the options of a program.
	flags(ctx context.Context, info *pulumirpc.ProgramInfo) ([]string, error)
	// install installs the dependencies of a program.
	install(ctx context.Context, request *pulumirpc.InstallDependenciesRequest, output streams) error
	// plugin returns the command that runs a component provider or a policy pack.
	plugin(ctx context.Context, request *pulumirpc.RunPluginRequest) (*command, error)
	// findsPlugins returns whether the old host can list the plugins of a program.
	findsPlugins(info *pulumirpc.ProgramInfo) bool
}

// adapter implements the language host.
type adapter struct {
	pulumirpc.UnimplementedLanguageRuntimeServer

	language language
	host     host
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", filepath.Base(os.Args[0]), err)
		os.Exit(1)
	}
}

func run() error {
	executable, err := os.Executable()
	if err != nil {
		return err
	}
	// The engine passes its address as the last argument.
	if len(os.Args) < 2 {
		return errors.New("the address of the engine is missing")
	}
	arguments, engine := os.Args[1:len(os.Args)-1], os.Args[len(os.Args)-1]
	path := filepath.Join(filepath.Dir(executable), filepath.Base(os.Args[0]))
	languages := map[string]language{"nodejs": nodejs{}, "python": python{}, "go": golang{}}
	selected, exists := languages[strings.TrimPrefix(filepath.Base(path), "pulumi-language-")]
	if !exists {
		return fmt.Errorf("%s is not the name of a language host", path)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan bool)
	go func() {
		<-ctx.Done()
		close(done)
	}()
	if err := rpcutil.Healthcheck(ctx, engine, maxIdle, cancel); err != nil {
		return fmt.Errorf("failed to connect to the engine: %w", err)
	}
	served := &adapter{language: selected, host: host{path: path + ".host", arguments: arguments, engine: engine}}
	handle, err := rpcutil.ServeWithOptions(rpcutil.ServeOptions{
		Cancel: done,
		Init: func(server *grpc.Server) error {
			pulumirpc.RegisterLanguageRuntimeServer(server, served)
			return nil
		},
		Options: rpcutil.TracingServerInterceptorOptions(nil),
	})
	if err != nil {
		return err
	}
	fmt.Println(handle.Port)
	return <-handle.Done
}

// GetPluginInfo returns no version, as hosts on the PATH do.
func (*adapter) GetPluginInfo(context.Context, *emptypb.Empty) (*pulumirpc.PluginInfo, error) {
	return &pulumirpc.PluginInfo{}, nil
}

// GetRequiredPlugins lists the plugins of a program with the old host.
func (adapter *adapter) GetRequiredPlugins(
	ctx context.Context, request *pulumirpc.GetRequiredPluginsRequest,
) (response *pulumirpc.GetRequiredPluginsResponse, err error) {
	if !adapter.language.findsPlugins(request.GetInfo()) {
		return &pulumirpc.GetRequiredPluginsResponse{}, nil
	}
	err = adapter.withHost(ctx, request.GetInfo(), func(client pulumirpc.LanguageRuntimeClient) error {
		response, err = client.GetRequiredPlugins(ctx, request)
		return err
	})
	return response, err
}

// Run runs a program with the old host.
func (adapter *adapter) Run(
	ctx context.Context, request *pulumirpc.RunRequest,
) (response *pulumirpc.RunResponse, err error) {
	err = adapter.withHost(ctx, request.GetInfo(), func(client pulumirpc.LanguageRuntimeClient) error {
		response, err = client.Run(ctx, request)
		return err
	})
	return response, err
}

func (adapter *adapter) withHost(
	ctx context.Context, info *pulumirpc.ProgramInfo, call func(pulumirpc.LanguageRuntimeClient) error,
) error {
	flags, err := adapter.language.flags(ctx, info)
	if err != nil {
		return err
	}
	return adapter.host.with(ctx, flags, info.GetProgramDirectory(), call)
}

// InstallDependencies installs the dependencies of a program.
func (adapter *adapter) InstallDependencies(
	request *pulumirpc.InstallDependenciesRequest, server pulumirpc.LanguageRuntime_InstallDependenciesServer,
) error {
	closer, stdout, stderr, err := rpcutil.MakeInstallDependenciesStreams(server, request.IsTerminal)
	if err != nil {
		return err
	}
	defer closer.Close()
	fmt.Fprint(stdout, "Installing dependencies...\n\n")
	if err := adapter.language.install(server.Context(), request, streams{stdout, stderr}); err != nil {
		return err
	}
	fmt.Fprint(stdout, "Finished installing dependencies\n\n")
	return closer.Close()
}
