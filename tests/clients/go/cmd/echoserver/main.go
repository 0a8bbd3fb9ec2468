// Command echoserver is a function evaluator that uses grpc-go, like Porch's own
// runner and wrapper-server. It replaces these two in tests of clients and runners. It
// accepts the wrapper-server's flags, and ignores an entrypoint after `--`.
//
// It runs no function. The last part of the image's name selects the answer. The
// registry and folders before it have no effect. Other names are like echo:
//
//	echo          answers with the request's resource list
//	error:CODE    fails with CODE (by default INTERNAL); the message is the request's
//	              resource list or, if that is empty, a fixed text of two lines
//	sleep:TIME    waits for a Go duration (by default 1s), then echoes
//	big:BYTES     answers with this number of bytes (by default 5242880)
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	_ "google.golang.org/grpc/encoding/gzip" // lets clients compress
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"clients.test/go/evaluatorpb"
)

const fixedErrorText = "first line: žluťoučký kůň, 日本語, 50 % of \"it\"\nsecond line"

func main() {
	address := flag.String("address", "127.0.0.1", "`host` to listen on")
	port := flag.Int("port", 9446, "`port` to listen on; 0 selects a free port and prints it")
	maxMessage := flag.Int("max-request-body-size", 6291456, "limit in `bytes` for each message, both ways")
	flag.Int("verbosity", 0, "has no effect")
	flag.Duration("drain-timeout", 0, "has no effect")
	exitWithStdin := flag.Bool("exit-with-stdin", false, "exit when standard input is closed")
	flag.Parse()
	log.SetFlags(0)

	listener, err := net.Listen("tcp", net.JoinHostPort(*address, strconv.Itoa(*port)))
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(grpc.MaxRecvMsgSize(*maxMessage), grpc.MaxSendMsgSize(*maxMessage))
	evaluatorpb.RegisterFunctionEvaluatorServer(server, evaluator{})
	healthServer := health.NewServer()
	grpc_health_v1.RegisterHealthServer(server, healthServer)

	stop, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	drained := make(chan struct{})
	go func() {
		<-stop.Done()
		healthServer.Shutdown()
		server.GracefulStop()
		close(drained)
	}()

	if *exitWithStdin {
		go func() {
			io.Copy(io.Discard, os.Stdin)
			os.Exit(0)
		}()
	}

	fmt.Println("listening on", listener.Addr())
	if err := server.Serve(listener); err != nil {
		log.Fatal(err)
	}
	<-drained
}

type evaluator struct {
	evaluatorpb.UnimplementedFunctionEvaluatorServer
}

func (evaluator) EvaluateFunction(ctx context.Context, request *evaluatorpb.EvaluateFunctionRequest) (*evaluatorpb.EvaluateFunctionResponse, error) {
	name, argument := nameAndTag(request.GetImage())
	echo := &evaluatorpb.EvaluateFunctionResponse{
		ResourceList: request.GetResourceList(),
		Log: []byte(fmt.Sprintf("image %q tag %q exec_path %q\n",
			request.GetImage(), request.GetTag(), request.GetExecPath())),
	}
	switch name {
	case "error":
		return nil, errorStatus(argument, string(request.GetResourceList()))
	case "sleep":
		pause, err := time.ParseDuration(orDefault(argument, "1s"))
		if err != nil {
			return nil, status.Error(codes.InvalidArgument, err.Error())
		}
		select {
		case <-time.After(pause):
			return echo, nil
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	case "big":
		size, err := strconv.Atoi(orDefault(argument, "5242880"))
		if err != nil || size < 0 || size > 1<<30 {
			return nil, status.Errorf(codes.InvalidArgument, "big: %q is not a size", argument)
		}
		return &evaluatorpb.EvaluateFunctionResponse{ResourceList: bytes.Repeat([]byte{'#'}, size), Log: echo.Log}, nil
	default:
		return echo, nil
	}
}

// nameAndTag splits the last part of an image reference. It ignores the tag latest,
// because callers add that tag.
func nameAndTag(image string) (name, tag string) {
	name, tag, _ = strings.Cut(image[strings.LastIndex(image, "/")+1:], ":")
	if tag == "latest" {
		tag = ""
	}
	return name, tag
}

func errorStatus(name, message string) error {
	c, known := code.Code_value[orDefault(name, "INTERNAL")]
	if !known || c == 0 {
		return status.Errorf(codes.InvalidArgument, "error: %q is not an error code", name)
	}
	return status.Error(codes.Code(c), orDefault(message, fixedErrorText))
}

func orDefault(s, fallback string) string {
	if s == "" {
		return fallback
	}
	return s
}
