// Command label-setter is a mutator that uses kyaml's function framework. It sets the
// entries of its ConfigMap's data as labels on every item.
package main

import (
	"errors"
	"maps"
	"os"
	"slices"

	"sigs.k8s.io/kustomize/kyaml/fn/framework"
	"sigs.k8s.io/kustomize/kyaml/fn/framework/command"
	"sigs.k8s.io/kustomize/kyaml/yaml"
)

func main() {
	cmd := command.Build(framework.ResourceListProcessorFunc(setLabels), command.StandaloneDisabled, false)
	if err := cmd.Execute(); err != nil {
		os.Exit(1)
	}
}

func setLabels(rl *framework.ResourceList) error {
	labels := rl.FunctionConfig.GetDataMap()
	if len(labels) == 0 {
		return errors.New("functionConfig has no labels: give a ConfigMap whose data maps label names to values")
	}
	// Sorted, so that new labels of an item always have the same order.
	names := slices.Sorted(maps.Keys(labels))
	for _, item := range rl.Items {
		for _, name := range names {
			if err := item.PipeE(yaml.SetLabel(name, labels[name])); err != nil {
				return err
			}
		}
	}
	return nil
}
