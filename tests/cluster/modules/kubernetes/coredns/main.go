// CoreDNS with the plugins that `inside` configures. Its own program has all of them, and with them the clients of three
// clouds, which take longer to build than the rest of it.
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
