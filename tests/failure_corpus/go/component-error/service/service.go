package service

import (
	"fmt"

	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"
)

// Arguments are the inputs of a service.
type Arguments struct {
	Port int
}

// Service is a component.
type Service struct {
	pulumi.ResourceState
}

// New creates a service.
func New(ctx *pulumi.Context, name string, arguments Arguments) (*Service, error) {
	service := &Service{}
	if err := ctx.RegisterComponentResource("example:app:Service", name, service); err != nil {
		return nil, err
	}
	if arguments.Port > 65535 {
		return nil, fmt.Errorf("service %s: invalid port %d", name, arguments.Port)
	}
	return service, nil
}
