// CoreDNS with only the plugins that `inside` configures. CoreDNS's own program has all plugins, and so the client
// libraries of three clouds, which take longer to build than the rest.
package main

import (
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/hosts"
	_ "github.com/coredns/coredns/plugin/kubernetes"
)

func main() {
	coremain.Run()
}
