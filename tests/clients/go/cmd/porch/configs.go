package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	account  = "/var/run/secrets/kubernetes.io/serviceaccount/"
	resource = "/apis/config.porch.kpt.dev/v1alpha1/namespaces/porch-fn-system/functionconfigs"
)

// functionConfigs has the executables of FunctionConfigs with the tag `*`. Like Porch's
// programs, it keeps an executable until it is restarted.
type functionConfigs struct {
	mutex sync.Mutex
	paths map[string]string
}

type functionConfigList struct {
	Items []struct {
		Spec struct {
			Image          string
			BinaryExecutor *struct {
				Tags []string
				Path string
			}
		}
	}
}

// followFunctionConfigs reads the FunctionConfigs now and then once a second.
func followFunctionConfigs() *functionConfigs {
	authority, err := os.ReadFile(account + "ca.crt")
	fatal(err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	client := &http.Client{
		Timeout:   5 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}},
	}
	configs := &functionConfigs{paths: map[string]string{}}
	read := func() {
		if err := configs.read(client); err != nil {
			log.Print("FunctionConfigs: ", err)
		}
	}
	read()
	go func() {
		for range time.Tick(time.Second) {
			read()
		}
	}()
	return configs
}

func (c *functionConfigs) read(client *http.Client) error {
	token, err := os.ReadFile(account + "token")
	if err != nil {
		return err
	}
	request, err := http.NewRequest(http.MethodGet, "https://kubernetes.default.svc"+resource, nil)
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+string(token))
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s", response.Status)
	}
	var list functionConfigList
	if err := json.NewDecoder(response.Body).Decode(&list); err != nil {
		return err
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for _, item := range list.Items {
		if binary := item.Spec.BinaryExecutor; binary != nil && slices.Contains(binary.Tags, "*") {
			c.paths[item.Spec.Image] = binary.Path
		}
	}
	return nil
}

// execPath is empty if no FunctionConfig has an executable for the image.
func (c *functionConfigs) execPath(image string) string {
	name, _, _ := strings.Cut(path.Base(image), ":")
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.paths[name]
}
