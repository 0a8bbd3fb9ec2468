package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"clients.test/go/evaluatorpb"
)

// How many error texts a report contains.
const mostTexts = 5

// Every hundredth call of a caller has a package whose size is just below the message limit.
const (
	largeEvery = 100
	below      = 64 << 10
)

// target evaluates functions.
type target interface {
	// name is the address, or "itself".
	name() string
	evaluate(*evaluatorpb.EvaluateFunctionRequest) (*evaluatorpb.EvaluateFunctionResponse, error)
}

// remote is one connection with Porch's options: dns, pick_first, no deadline, no retry.
type remote struct {
	address string
	client  evaluatorpb.FunctionEvaluatorClient
}

// inProcess stands for the pod evaluator inside the next version's porch-server.
type inProcess struct{}

// calls makes the calls of one of Porch's programs.
type calls struct {
	// The message limit in bytes, both ways.
	maxMessage int
	// The target of all calls or, if configs is set, of images with an executable.
	executables target
	// The target of the other calls.
	pods    target
	configs *functionConfigs

	mutex  sync.Mutex
	report report
}

// report contains the outcomes of all calls so far. The last report has Done set.
type report struct {
	Program string         `json:"program"`
	Pod     string         `json:"pod"`
	Calls   map[string]int `json:"calls"`
	Failed  int            `json:"failed"`
	Texts   []string       `json:"texts"`
	Slowest float64        `json:"slowest_seconds"`
	Done    bool           `json:"done"`
}

// dial returns nil for an empty address: then no call is made.
func (c *calls) dial(address string) target {
	if address == "" {
		return nil
	}
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(c.maxMessage), grpc.MaxCallSendMsgSize(c.maxMessage)))
	fatal(err)
	return &remote{address, evaluatorpb.NewFunctionEvaluatorClient(connection)}
}

func (r *remote) name() string { return r.address }

func (r *remote) evaluate(request *evaluatorpb.EvaluateFunctionRequest) (*evaluatorpb.EvaluateFunctionResponse, error) {
	return r.client.EvaluateFunction(context.Background(), request)
}

func (inProcess) name() string { return "itself" }

func (inProcess) evaluate(request *evaluatorpb.EvaluateFunctionRequest) (*evaluatorpb.EvaluateFunctionResponse, error) {
	time.Sleep(work)
	return &evaluatorpb.EvaluateFunctionResponse{ResourceList: request.GetResourceList()}, nil
}

// newCalls reads the message limit from a flag.
func newCalls(program, limitFlag string) *calls {
	pod, err := os.Hostname()
	fatal(err)
	limit := maxMessage
	if value := flagValue(limitFlag); value != "" {
		limit, err = strconv.Atoi(value)
		fatal(err)
	}
	return &calls{maxMessage: limit, report: report{Program: program, Pod: pod, Calls: map[string]int{}}}
}

// run makes calls until the program has received SIGTERM and its last calls have ended.
func (c *calls) run(stop context.Context) {
	renders, err := strconv.Atoi(os.Getenv("RENDERS"))
	fatal(err)
	pause, err := time.ParseDuration(os.Getenv("PAUSE"))
	fatal(err)
	images := strings.Split(os.Getenv("IMAGES"), ",")

	reporter, err := net.Dial("tcp", os.Getenv("REPORT_TO"))
	fatal(err)
	ended := make(chan struct{})
	context.AfterFunc(stop, func() {
		log.Print("received SIGTERM")
		time.AfterFunc(lastCalls, func() { close(ended) })
	})
	var callers sync.WaitGroup
	for caller := range renders {
		callers.Go(func() {
			for number := 0; ; number++ {
				c.call(images[(caller+number)%len(images)], fmt.Sprintf("%s-%d-%d", c.report.Pod, caller, number), number%largeEvery == largeEvery-1)
				select {
				case <-ended:
					return
				case <-time.After(pause):
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { callers.Wait(); close(done) }()
	for {
		select {
		case <-done:
			c.send(reporter, true)
			return
		case <-time.After(200 * time.Millisecond):
			c.send(reporter, false)
		}
	}
}

func (c *calls) send(reporter net.Conn, done bool) {
	c.mutex.Lock()
	c.report.Done = done
	line, err := json.Marshal(c.report)
	c.mutex.Unlock()
	fatal(err)
	_, err = reporter.Write(append(line, '\n'))
	fatal(err)
}

// call makes one call and records its outcome.
func (c *calls) call(image, id string, large bool) {
	request := &evaluatorpb.EvaluateFunctionRequest{Image: image, ResourceList: []byte("kind: ResourceList\n# " + id + "\n")}
	if large {
		request.ResourceList = append(request.ResourceList, bytes.Repeat([]byte("# a large package\n"), (c.maxMessage-below)/18)...)
	}
	to := c.executables
	if c.configs != nil {
		request.ExecPath = c.configs.execPath(image)
		if request.ExecPath == "" || to == nil {
			to, request.ExecPath = c.pods, ""
		}
	}
	if to == nil {
		// Porch could evaluate only built-in functions then.
		return
	}
	began := time.Now()
	response, err := to.evaluate(request)
	text := ""
	if err != nil {
		text = fmt.Sprintf("func eval %q failed: %v", image, err)
	} else if !bytes.Equal(response.GetResourceList(), request.ResourceList) {
		text = fmt.Sprintf("func eval %q: the answer is not the package", image)
	}

	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.report.Calls[to.name()]++
	c.report.Slowest = max(c.report.Slowest, time.Since(began).Seconds())
	if text != "" {
		log.Print(text)
		c.report.Failed++
		if len(c.report.Texts) < mostTexts {
			c.report.Texts = append(c.report.Texts, to.name()+": "+text)
		}
	}
}
