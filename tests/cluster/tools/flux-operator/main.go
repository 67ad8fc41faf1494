// Command resourcesets runs the controllers of the Flux Operator for ResourceSets and their input providers. It runs no
// controller of Flux instances, so it cannot change the Flux of the test cluster.
//
// The complete operator cannot be built from its Go module: the module lacks the files of the web interface, which
// another build creates.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/fluxcd/cli-utils/pkg/kstatus/polling/clusterreader"
	"github.com/fluxcd/cli-utils/pkg/kstatus/polling/engine"
	runtimecontroller "github.com/fluxcd/pkg/runtime/controller"
	"github.com/fluxcd/pkg/runtime/logger"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	fluxcdv1 "github.com/controlplaneio-fluxcd/flux-operator/api/v1"
	"github.com/controlplaneio-fluxcd/flux-operator/internal/controller"
)

const (
	// name is the field manager of the applied objects and the source of the events.
	name = "flux-operator"
	// dependencyInterval is the default of the operator.
	dependencyInterval = 5 * time.Second
	// version is part of the user agent in requests to Git providers.
	version = "test"
)

func main() {
	logger.SetLogger(logger.NewLogger(logger.Options{LogEncoding: "json", LogLevel: "info"}))
	if err := run(ctrl.SetupSignalHandler()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	config, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme, fluxcdv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	operator, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                 scheme,
		Metrics:                metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress: ":8081",
		// As in the operator, the controllers read Secrets and ConfigMaps from the API server.
		Client: client.Options{Cache: &client.CacheOptions{DisableFor: []client.Object{&corev1.Secret{}, &corev1.ConfigMap{}}}},
	})
	if err != nil {
		return fmt.Errorf("failed to create the manager: %w", err)
	}
	if err := addControllers(ctx, operator); err != nil {
		return err
	}
	for _, add := range []func(string, healthz.Checker) error{operator.AddHealthzCheck, operator.AddReadyzCheck} {
		if err := add("ping", healthz.Ping); err != nil {
			return err
		}
	}
	return operator.Start(ctx)
}

// addControllers adds the controllers with the settings of the operator.
func addControllers(ctx context.Context, operator manager.Manager) error {
	limiter := func() runtimecontroller.RateLimiterOptions {
		return runtimecontroller.RateLimiterOptions{MinRetryDelay: 750 * time.Millisecond, MaxRetryDelay: 15 * time.Minute}
	}
	watched, err := runtimecontroller.GetWatchConfigsPredicate(runtimecontroller.WatchOptions{})
	if err != nil {
		return err
	}
	sets := &controller.ResourceSetReconciler{
		Client:            operator.GetClient(),
		APIReader:         operator.GetAPIReader(),
		Scheme:            operator.GetScheme(),
		ClusterReader:     engine.ClusterReaderFactoryFunc(clusterreader.NewDirectClusterReader),
		StatusManager:     name,
		EventRecorder:     operator.GetEventRecorderFor(name),
		RequeueDependency: dependencyInterval,
	}
	err = sets.SetupWithManager(ctx, operator, controller.ResourceSetReconcilerOptions{
		RateLimiter:           runtimecontroller.GetRateLimiter(limiter()),
		WatchConfigsPredicate: watched,
	})
	if err != nil {
		return fmt.Errorf("failed to add the controller of ResourceSets: %w", err)
	}
	providers := &controller.ResourceSetInputProviderReconciler{
		Client:        operator.GetClient(),
		Scheme:        operator.GetScheme(),
		StatusManager: name,
		EventRecorder: operator.GetEventRecorderFor(name),
		Version:       version,
	}
	err = providers.SetupWithManager(operator, controller.ResourceSetInputProviderReconcilerOptions{
		RateLimiter: runtimecontroller.GetRateLimiter(limiter()),
	})
	if err != nil {
		return fmt.Errorf("failed to add the controller of input providers: %w", err)
	}
	return nil
}
