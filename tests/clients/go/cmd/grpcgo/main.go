// Command grpcgo calls a function evaluator like Porch: with grpc-go, generated code,
// plaintext, one connection, and no option except size limits. It prints the outcome
// as one JSON line, which README.md describes.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"clients.test/go/evaluatorpb"
)

type options struct {
	addr, image, tag string
	execPath         string
	in, out          string
	timeout          time.Duration
	calls            int
	concurrent       int
	gzip             bool
	maxMessage       int
	json             bool
}

func parseFlags() options {
	var o options
	flag.StringVar(&o.addr, "addr", "localhost:9445", "`address` of the evaluator")
	flag.StringVar(&o.image, "image", "", "`reference` of the function's image")
	flag.StringVar(&o.tag, "tag", "", "semver `constraint` in the field tag")
	flag.StringVar(&o.execPath, "exec-path", "", "`path` of an executable in the field exec_path")
	flag.StringVar(&o.in, "in", "", "`file` with the resource list (default stdin)")
	flag.StringVar(&o.out, "out", "", "`file` for the answer's resource list")
	flag.DurationVar(&o.timeout, "timeout", 0, "deadline of each call; 0 sends no deadline, like Porch")
	flag.IntVar(&o.calls, "n", 1, "`calls` to make, all on one connection")
	flag.IntVar(&o.concurrent, "c", 1, "`calls` in flight at a time")
	flag.BoolVar(&o.gzip, "gzip", false, "compress requests")
	flag.IntVar(&o.maxMessage, "max-message", 6291456, "limit in `bytes` for each message, both ways; the default is Porch's")
	flag.BoolVar(&o.json, "json", true, "print JSON; if false, print the code and the message as text")
	flag.Parse()
	if flag.NArg() > 0 || o.image == "" || o.calls < 1 || o.concurrent < 1 {
		fmt.Fprintln(os.Stderr, "grpcgo: -image is required, -n and -c must be at least 1, and only flags are accepted")
		os.Exit(2)
	}
	return o
}

func main() {
	o := parseFlags()
	result, err := run(o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "grpcgo:", err)
		os.Exit(2)
	}
	if o.json {
		line := json.NewEncoder(os.Stdout)
		line.SetEscapeHTML(false) // grpcpy does not escape HTML either
		if err := line.Encode(result); err != nil {
			fmt.Fprintln(os.Stderr, "grpcgo:", err)
			os.Exit(2)
		}
	} else {
		fmt.Println(result.Code, result.Message)
	}
	if result.Code != "OK" || !result.Equal {
		os.Exit(1)
	}
}

func run(o options) (*report, error) {
	resourceList, err := readInput(o.in)
	if err != nil {
		return nil, err
	}
	callOptions := []grpc.CallOption{
		grpc.MaxCallSendMsgSize(o.maxMessage),
		grpc.MaxCallRecvMsgSize(o.maxMessage),
	}
	if o.gzip {
		callOptions = append(callOptions, grpc.UseCompressor(gzip.Name))
	}
	connections := &connectionCounter{}
	conn, err := grpc.NewClient(o.addr,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(callOptions...),
		grpc.WithStatsHandler(connections),
		grpc.WithNoProxy(), // HTTPS_PROXY must not affect a test
	)
	if err != nil {
		return nil, err
	}
	defer conn.Close()

	client := evaluatorpb.NewFunctionEvaluatorClient(conn)
	request := &evaluatorpb.EvaluateFunctionRequest{
		ResourceList: resourceList, Image: o.image, Tag: o.tag, ExecPath: o.execPath,
	}
	answers := newAnswers()
	start := time.Now()
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(o.concurrent, o.calls) {
		workers.Go(func() {
			for next.Add(1) <= int64(o.calls) {
				answers.add(call(client, request, o.timeout))
			}
		})
	}
	workers.Wait()
	elapsed := time.Since(start)

	if ok := answers.first["OK"]; ok != nil && o.out != "" {
		if err := os.WriteFile(o.out, ok.resourceList, 0o644); err != nil {
			return nil, err
		}
	}
	return answers.report(elapsed, connections.begun.Load()), nil
}

func readInput(path string) ([]byte, error) {
	if path == "" {
		return io.ReadAll(os.Stdin)
	}
	return os.ReadFile(path)
}

func call(client evaluatorpb.FunctionEvaluatorClient, request *evaluatorpb.EvaluateFunctionRequest, timeout time.Duration) *answer {
	ctx := context.Background()
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	response, err := client.EvaluateFunction(ctx, request)
	s := status.Convert(err)
	return &answer{
		code:         code.Code(s.Code()).String(),
		message:      s.Message(),
		resourceList: response.GetResourceList(),
		log:          response.GetLog(),
	}
}

type answer struct {
	code, message     string
	resourceList, log []byte
}

// answers keeps the first answer of each code and compares later answers with it. It
// does not keep these, because they may be large.
type answers struct {
	mu         sync.Mutex
	count      map[string]int
	first      map[string]*answer
	firstError string
	equal      bool
}

func newAnswers() *answers {
	return &answers{count: map[string]int{}, first: map[string]*answer{}, equal: true}
}

func (as *answers) add(a *answer) {
	as.mu.Lock()
	defer as.mu.Unlock()
	as.count[a.code]++
	first := as.first[a.code]
	if first == nil {
		as.first[a.code] = a
		if a.code != "OK" && as.firstError == "" {
			as.firstError = a.code
		}
		return
	}
	if a.message != first.message || !bytes.Equal(a.resourceList, first.resourceList) {
		as.equal = false
	}
}

// report is the JSON line.
type report struct {
	Code        string         `json:"code"`
	Message     string         `json:"message"`
	Count       map[string]int `json:"count"`
	Equal       bool           `json:"equal"`
	Bytes       int            `json:"bytes"`
	Log         string         `json:"log"`
	ElapsedMS   float64        `json:"elapsed_ms"`
	Connections int64          `json:"connections"`
}

func (as *answers) report(elapsed time.Duration, connections int64) *report {
	r := &report{
		Code:        "OK",
		Count:       as.count,
		Equal:       as.equal,
		ElapsedMS:   float64(elapsed.Microseconds()) / 1000,
		Connections: connections,
	}
	if ok := as.first["OK"]; ok != nil {
		r.Bytes, r.Log = len(ok.resourceList), string(ok.log)
	}
	if as.firstError != "" {
		r.Code, r.Message = as.firstError, as.first[as.firstError].message
	}
	return r
}

// connectionCounter counts new connections.
type connectionCounter struct {
	begun atomic.Int64
}

func (c *connectionCounter) HandleConn(_ context.Context, s stats.ConnStats) {
	if _, ok := s.(*stats.ConnBegin); ok {
		c.begun.Add(1)
	}
}

func (*connectionCounter) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context {
	return ctx
}

func (*connectionCounter) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context {
	return ctx
}

func (*connectionCounter) HandleRPC(context.Context, stats.RPCStats) {}
