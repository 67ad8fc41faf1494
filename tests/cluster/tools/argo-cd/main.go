// Command argo-cd runs the application controller or the repository server of Argo CD, a Redis server for both, or
// kustomize, which the repository server starts. The name of the executable file selects the program, as in the image of
// Argo CD.
//
// The program omits the other programs of the image, such as the API server with its web interface and the CLI.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	applicationcontroller "github.com/argoproj/argo-cd/v3/cmd/argocd-application-controller/commands"
	reposerver "github.com/argoproj/argo-cd/v3/cmd/argocd-repo-server/commands"
	"github.com/argoproj/argo-cd/v3/common"
	kustomize "sigs.k8s.io/kustomize/kustomize/v5/commands"
)

// redis is the name of the executable file that runs the Redis server.
const redis = "argocd-redis"

// tick is the interval in which the lifetime of the keys in Redis decreases.
const tick = time.Second

func main() {
	if err := run(filepath.Base(os.Args[0])); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(name string) error {
	switch name {
	case common.CommandApplicationController:
		return applicationcontroller.NewCommand().Execute()
	case common.CommandRepoServer:
		return reposerver.NewCommand().Execute()
	case redis:
		return serveRedis(os.Getenv("REDIS_PASSWORD"))
	case "kustomize":
		return kustomize.NewDefaultCommand().Execute()
	default:
		return fmt.Errorf("unknown program %q: the name of the executable file must be %s, %s, %s or kustomize", name,
			common.CommandApplicationController, common.CommandRepoServer, redis)
	}
}

// serveRedis runs a Redis server in memory until a signal ends it.
func serveRedis(password string) error {
	server := miniredis.NewMiniRedis()
	server.RequireAuth(password)
	if err := server.StartAddr(":6379"); err != nil {
		return err
	}
	defer server.Close()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			// The server decreases the lifetime of keys only on request.
			server.FastForward(tick)
		}
	}
}
