package main

import (
	"errors"
	"fmt"
	"io"
	"os/exec"

	"github.com/pulumi/pulumi/sdk/v3/go/common/util/rpcutil"
	pulumirpc "github.com/pulumi/pulumi/sdk/v3/proto/go"
)

// analyzer is the kind of plugin that runs a policy pack.
const analyzer = "analyzer"

// streams are the outputs that the CLI shows.
type streams struct {
	stdout, stderr io.Writer
}

// command is a command that runs a plugin.
type command struct {
	*exec.Cmd
	// cleanUp runs after the plugin has ended. The function may be nil.
	cleanUp func()
}

// RunPlugin runs a component provider or a policy pack until it ends.
func (adapter *adapter) RunPlugin(
	request *pulumirpc.RunPluginRequest, server pulumirpc.LanguageRuntime_RunPluginServer,
) error {
	plugin, err := adapter.language.plugin(server.Context(), request)
	if err != nil {
		return err
	}
	if plugin.cleanUp != nil {
		defer plugin.cleanUp()
	}
	closer, stdout, stderr, err := rpcutil.MakeRunPluginStreams(server, false)
	if err != nil {
		return err
	}
	defer closer.Close()
	if plugin.Dir == "" {
		plugin.Dir = request.GetPwd()
	}
	plugin.Stdout, plugin.Stderr = stdout, stderr
	err = plugin.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		code := &pulumirpc.RunPluginResponse_Exitcode{Exitcode: int32(exit.ExitCode())}
		err = server.Send(&pulumirpc.RunPluginResponse{Output: code})
	}
	if err != nil {
		return fmt.Errorf("failed to run the plugin in %s: %w", request.GetInfo().GetProgramDirectory(), err)
	}
	return closer.Close()
}
