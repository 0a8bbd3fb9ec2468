// Command validator is a validator that uses kyaml's function framework. Its structured
// results report Deployments without replicas and privileged containers. It then exits
// with 1, but its stdout is complete.
package main

import (
	"fmt"
	"os"
	"strconv"

	"sigs.k8s.io/kustomize/kyaml/fn/framework"
	"sigs.k8s.io/kustomize/kyaml/fn/framework/command"
	"sigs.k8s.io/kustomize/kyaml/kio/kioutil"
	"sigs.k8s.io/kustomize/kyaml/yaml"
)

func main() {
	cmd := command.Build(framework.ResourceListProcessorFunc(validate), command.StandaloneDisabled, false)
	if err := cmd.Execute(); err != nil {
		os.Exit(1)
	}
}

func validate(rl *framework.ResourceList) error {
	for _, item := range rl.Items {
		if item.GetKind() != "Deployment" {
			continue
		}
		results, err := checkDeployment(item)
		if err != nil {
			return err
		}
		rl.Results = append(rl.Results, results...)
	}
	if rl.Results.ExitCode() == 0 {
		return nil
	}
	return rl.Results
}

func checkDeployment(deployment *yaml.RNode) (framework.Results, error) {
	var results framework.Results

	replicas, err := deployment.Pipe(yaml.Lookup("spec", "replicas"))
	if err != nil {
		return nil, err
	}
	if yaml.IsMissingOrNull(replicas) || yaml.GetValue(replicas) == "0" {
		field := &framework.Field{Path: "spec.replicas", ProposedValue: 1}
		if !yaml.IsMissingOrNull(replicas) {
			field.CurrentValue = 0
		}
		results = append(results, newResult(deployment, field, "a Deployment must ask for at least one replica"))
	}

	for _, list := range []string{"initContainers", "containers"} {
		containers, err := deployment.Pipe(yaml.Lookup("spec", "template", "spec", list))
		if err != nil {
			return nil, err
		}
		if yaml.IsMissingOrNull(containers) {
			continue
		}
		elements, err := containers.Elements()
		if err != nil {
			return nil, err
		}
		for i, container := range elements {
			privileged, err := container.Pipe(yaml.Lookup("securityContext", "privileged"))
			if err != nil {
				return nil, err
			}
			if yaml.GetValue(privileged) != "true" {
				continue
			}
			name, err := container.Pipe(yaml.Get("name"))
			if err != nil {
				return nil, err
			}
			field := &framework.Field{
				Path:          fmt.Sprintf("spec.template.spec.%s[%d].securityContext.privileged", list, i),
				CurrentValue:  true,
				ProposedValue: false,
			}
			results = append(results, newResult(deployment, field, fmt.Sprintf("container %q must not be privileged", yaml.GetValue(name))))
		}
	}
	return results, nil
}

func newResult(item *yaml.RNode, field *framework.Field, message string) *framework.Result {
	result := &framework.Result{
		Severity: framework.Error,
		Message:  message,
		Field:    field,
		ResourceRef: &yaml.ResourceIdentifier{
			TypeMeta: yaml.TypeMeta{APIVersion: item.GetApiVersion(), Kind: item.GetKind()},
			NameMeta: yaml.NameMeta{Name: item.GetName(), Namespace: item.GetNamespace()},
		},
	}
	// An item that is not from a file has no path.
	if path, index, err := kioutil.GetFileAnnotations(item); err == nil && path != "" {
		result.File = &framework.File{Path: path}
		if n, err := strconv.Atoi(index); err == nil {
			result.File.Index = n
		}
	}
	return result
}
