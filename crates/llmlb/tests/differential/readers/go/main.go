// Reader with the standard library of Go, as in Ollama and LocalAI: net/http with cleaned paths,
// encoding/json, which ignores the case of names, and mime/multipart.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"mime"
	"net"
	"net/http"
	"os"
	"path"
	"strings"
)

type endpoint struct {
	Method string `json:"method"`
	Path   string `json:"path"`
	Reads  string `json:"reads"`
}

type document struct {
	Model *string `json:"model"`
}

// matches compares segment by segment; a segment in braces matches any text.
func (e endpoint) matches(method, path string) bool {
	wanted, found := strings.Split(e.Path, "/"), strings.Split(path, "/")
	if method != e.Method || len(wanted) != len(found) {
		return false
	}
	for at, segment := range wanted {
		if segment != found[at] && !(strings.HasPrefix(segment, "{") && found[at] != "") {
			return false
		}
	}
	return true
}

func (e endpoint) model(request *http.Request) (*string, error) {
	switch e.Reads {
	case "nothing":
		return nil, nil
	case "query":
		return nonEmpty(request.URL.Query().Get("model")), nil
	case "form":
		kind, _, err := mime.ParseMediaType(request.Header.Get("Content-Type"))
		if kind == "multipart/form-data" || kind == "application/x-www-form-urlencoded" {
			if err != nil {
				return nil, err
			}
			err = request.ParseMultipartForm(64 << 20)
			if err != nil && !errors.Is(err, http.ErrNotMultipart) {
				return nil, err
			}
			return nonEmpty(request.FormValue("model")), nil
		}
	}
	var read document
	err := json.NewDecoder(request.Body).Decode(&read)
	return read.Model, err
}

func nonEmpty(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

func main() {
	text, err := os.ReadFile(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	var endpoints []endpoint
	if err := json.Unmarshal(text, &endpoints); err != nil {
		log.Fatal(err)
	}
	serve := func(response http.ResponseWriter, request *http.Request) {
		cleaned := path.Clean(request.URL.Path)
		for _, endpoint := range endpoints {
			if !endpoint.matches(request.Method, cleaned) {
				continue
			}
			model, err := endpoint.model(request)
			if err != nil {
				http.Error(response, err.Error(), http.StatusBadRequest)
				return
			}
			_ = json.NewEncoder(response).Encode(map[string]any{"endpoint": endpoint.Path, "model": model})
			return
		}
		http.NotFound(response, request)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	log.SetOutput(io.Discard)
	log.Fatal(http.Serve(listener, http.HandlerFunc(serve)))
}
