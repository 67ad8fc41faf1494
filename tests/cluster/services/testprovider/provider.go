// Package testprovider is a Pulumi provider with one resource, Step. A Step takes time, fails or ignores cancellation
// as configured, and reports each operation to the provider log.
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

// New returns the provider.
func New() (provider.Provider, error) {
	inferred, err := infer.NewProviderBuilder().WithResources(infer.Resource(Step{})).Build()
	if err != nil {
		return provider.Provider{}, fmt.Errorf("failed to create the provider %s: %w", Name, err)
	}
	return withURN(inferred), nil
}

// withURN passes the URN of the resource to its operations, because infer does not expose the URN. The URN contains the
// stack and the project.
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

// urnOf returns the URN of the resource, or an empty string outside of the provider.
func urnOf(ctx context.Context) resource.URN {
	urn, _ := ctx.Value(urnKey{}).(resource.URN)
	return urn
}
