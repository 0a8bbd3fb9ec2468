// Command porch replaces Porch's programs in the Deployments that Porch ships. It has
// their flags, variables and probes. It makes and answers calls, and shuts down, like
// they do, but it renders no package. OTEL_SERVICE_NAME selects the program:
//
//	porch-server            calls --function-runner; the next version also evaluates
//	                        functions for others (--pod-evaluator-port)
//	porch-controllers       calls FUNCTION_RUNNER_ADDRESS and POD_EVALUATOR_ADDRESS
//	porch-function-runner   evaluates functions; without --pod-namespace, only exec_path
//
// Additional variables of the tests: IMAGES is a list, separated by commas, of images to
// call in turn. RENDERS is the number of callers. PAUSE is the pause of a caller after a
// call. REPORT_TO is the TCP address that gets reports of the calls. Under the name
// grpc-health-probe the program is a health probe.
package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
)

// Porch's default message limit, which is also in its manifests.
const maxMessage = 6291456

// How long the program makes calls after SIGTERM. Porch's server was measured to need 33 s.
const lastCalls = 30 * time.Second

func main() {
	log.SetFlags(log.Ltime | log.Lmicroseconds)
	if filepath.Base(os.Args[0]) == "grpc-health-probe" {
		os.Exit(probe())
	}
	stop, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()

	switch name := os.Getenv("OTEL_SERVICE_NAME"); name {
	case "porch-function-runner":
		// Like Porch's runner, it exits at once after SIGTERM, and calls in flight fail.
		go serveEvaluator(":9445", &evaluator{pods: flagValue("pod-namespace") != "", cold: 2 * time.Second})
		<-stop.Done()
	case "porch-server":
		go serveHTTPS(":4443")
		calls := newCalls(name, "max-request-body-size")
		if os.Getenv("WRAPPER_SERVER_IMAGE") != "" {
			calls.pods = inProcess{}
			calls.configs = followFunctionConfigs()
			server := serveEvaluator(":"+flagValue("pod-evaluator-port"), &evaluator{pods: true})
			context.AfterFunc(stop, server.Stop)
		}
		calls.executables = calls.dial(flagValue("function-runner"))
		calls.run(stop)
	case "porch-controllers":
		go serveHTTP(":8081")
		calls := newCalls(name, "packagerevisions.max-grpc-message-size")
		calls.executables = calls.dial(os.Getenv("FUNCTION_RUNNER_ADDRESS"))
		if address := os.Getenv("POD_EVALUATOR_ADDRESS"); address != "" {
			calls.pods = calls.dial(address)
			calls.configs = followFunctionConfigs()
		}
		calls.run(stop)
	default:
		log.Fatalf("OTEL_SERVICE_NAME: %q is not a program of Porch", name)
	}
}

// flagValue returns the value of a flag in the form --name=value, which Porch's manifests use.
func flagValue(name string) string {
	for _, arg := range os.Args[1:] {
		if value, found := strings.CutPrefix(arg, "--"+name+"="); found {
			return value
		}
	}
	return ""
}

func serveHTTP(address string) {
	log.Fatal(http.ListenAndServe(address, http.HandlerFunc(ok)))
}

// serveHTTPS uses a self-signed certificate, like Porch's server for the kubelet.
func serveHTTPS(address string) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	fatal(err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour)}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	fatal(err)
	pair := tls.Certificate{Certificate: [][]byte{certificate}, PrivateKey: key}
	listener, err := tls.Listen("tcp", address, &tls.Config{Certificates: []tls.Certificate{pair}})
	fatal(err)
	log.Fatal(http.Serve(listener, http.HandlerFunc(ok)))
}

func ok(w http.ResponseWriter, _ *http.Request) {
	w.WriteHeader(http.StatusOK)
}

// probe checks the health of a server like `grpc-health-probe -addr HOST:PORT`.
func probe() int {
	address := os.Args[len(os.Args)-1]
	if _, _, err := net.SplitHostPort(address); err != nil {
		log.Print("the last argument is not HOST:PORT: ", err)
		return 1
	}
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	fatal(err)
	within, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	health, err := grpc_health_v1.NewHealthClient(connection).Check(within, &grpc_health_v1.HealthCheckRequest{})
	if err != nil || health.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		log.Print("not serving: ", err)
		return 2
	}
	return 0
}

func fatal(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
