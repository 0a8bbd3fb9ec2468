package main

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"clients.test/go/evaluatorpb"
)

// How long an evaluation takes.
const work = 50 * time.Millisecond

// evaluator answers with the resource list of the request.
type evaluator struct {
	evaluatorpb.UnimplementedFunctionEvaluatorServer
	// Whether it has pods for functions. If false, it accepts only executables.
	pods bool
	// How long the first pod of an image needs to start. Its calls wait, although the
	// server reports that it is ready. Porch's function runner behaves like this.
	cold time.Duration

	mutex sync.Mutex
	warm  map[string]time.Time
}

func (e *evaluator) EvaluateFunction(ctx context.Context, request *evaluatorpb.EvaluateFunctionRequest) (*evaluatorpb.EvaluateFunctionResponse, error) {
	image := request.GetImage()
	if !e.pods {
		path := request.GetExecPath()
		if !filepath.IsAbs(path) {
			path = filepath.Join(flagValue("functions"), path)
		}
		if info, err := os.Stat(path); request.GetExecPath() == "" || err != nil || info.IsDir() {
			return nil, status.Errorf(codes.NotFound, "function %q not found", image)
		}
	}
	select {
	case <-time.After(work + time.Until(e.ready(image))):
		return &evaluatorpb.EvaluateFunctionResponse{ResourceList: request.GetResourceList()}, nil
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

// ready returns the time at which the image's first pod has started.
func (e *evaluator) ready(image string) time.Time {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	if e.warm == nil {
		e.warm = map[string]time.Time{}
	}
	if _, found := e.warm[image]; !found {
		e.warm[image] = time.Now().Add(e.cold)
	}
	return e.warm[image]
}

// serveEvaluator serves in the background.
func serveEvaluator(address string, evaluator *evaluator) *grpc.Server {
	server := grpc.NewServer(grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage))
	evaluatorpb.RegisterFunctionEvaluatorServer(server, evaluator)
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	listener, err := net.Listen("tcp", address)
	fatal(err)
	go func() { fatal(server.Serve(listener)) }()
	return server
}
