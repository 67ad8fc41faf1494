// Package testprovider is a Pulumi provider with one resource, Step, which does what a test tells it to: takes its
// time, fails, ignores being cancelled; and which reports each thing it does to the provider log.
package testprovider

import (
	"context"
	"fmt"

	provider "github.com/pulumi/pulumi-go-provider"
	"github.com/pulumi/pulumi-go-provider/infer"
	"github.com/pulumi/pulumi/sdk/v3/go/common/resource"
)

const (
	Name    = "testing"
	Version = "0.1.0"
)

type urnKey struct{}

// New makes the provider.
func New() (provider.Provider, error) {
	inferred, err := infer.NewProviderBuilder().WithResources(infer.Resource(Step{})).Build()
	if err != nil {
		return provider.Provider{}, fmt.Errorf("making the provider %s: %w", Name, err)
	}
	return withURN(inferred), nil
}

// withURN gives the operations of a resource its URN, which names its stack and project and which infer keeps to itself.
func withURN(inner provider.Provider) provider.Provider {
	outer := inner
	outer.Create = func(ctx context.Context, request provider.CreateRequest) (provider.CreateResponse, error) {
		return inner.Create(context.WithValue(ctx, urnKey{}, request.Urn), request)
	}
	outer.Update = func(ctx context.Context, request provider.UpdateRequest) (provider.UpdateResponse, error) {
		return inner.Update(context.WithValue(ctx, urnKey{}, request.Urn), request)
	}
	outer.Delete = func(ctx context.Context, request provider.DeleteRequest) error {
		return inner.Delete(context.WithValue(ctx, urnKey{}, request.Urn), request)
	}
	return outer
}

// urnOf returns the URN of the resource that an operation is about, empty outside of the provider.
func urnOf(ctx context.Context) resource.URN {
	urn, _ := ctx.Value(urnKey{}).(resource.URN)
	return urn
}
