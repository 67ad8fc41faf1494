package main

import (
	"strings"
	"sync"

	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"
)

func main() {
	pulumi.Run(func(ctx *pulumi.Context) error {
		zones := strings.Split("a,b", ",")
		var group sync.WaitGroup
		for index := 0; index < 3; index++ {
			group.Add(1)
			go func() {
				defer group.Done()
				ctx.Log.Info(zones[index], nil)
			}()
		}
		group.Wait()
		return nil
	})
}
