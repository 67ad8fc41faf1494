package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"
)

type settings struct {
	Name string `json:"name"`
}

func load(file string) (*settings, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read settings: %w", err)
	}
	var read settings
	if err := json.Unmarshal(text, &read); err != nil {
		return nil, fmt.Errorf("parse settings in %s: %w", file, err)
	}
	return &read, nil
}

func main() {
	pulumi.Run(func(ctx *pulumi.Context) error {
		read, err := load("settings.json")
		if err != nil {
			return fmt.Errorf("load the stack: %w", err)
		}
		ctx.Export("name", pulumi.String(read.Name))
		return nil
	})
}
