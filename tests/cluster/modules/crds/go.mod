// Only the CustomResourceDefinitions are used. Tests check the components of deploy/ against them.
module cluster.test/crds

go 1.24

require (
	github.com/cert-manager/cert-manager v1.21.2
	github.com/prometheus-operator/prometheus-operator v0.92.0
)
