// The app of the tests: what a user's program beside the worker looks like to it. A job says itself how it
// shall end, in fields of its own, of its `payload` or of one of its `args`:
//
//	"duration_ms": 1500   answer after that time
//	"fail": true          answer 500
//	"die": true           end the process without an answer
//	"memory_mib": 100     use that much memory, and keep it until the answer
//
// POST /jobs/execute runs a job, GET /health says that the app is there. It listens on $PORT (3000) of every
// address. SIGTERM: no new connections, what runs is finished, exit 0.
//
// It is a collector of traces as well: it takes OTLP over gRPC, and GET /traces has one line a request, the protobuf
// message in base64.
package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net/http"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
	"time"
)

type job struct {
	DurationMs int64 `json:"duration_ms"`
	Fail       bool  `json:"fail"`
	Die        bool  `json:"die"`
	MemoryMiB  int   `json:"memory_mib"`
}

// parse reads the wishes from every place where a protocol lets a client put them. What is not an object there
// has no wishes.
func parse(body []byte) (job, error) {
	var wishes job
	if err := json.Unmarshal(body, &wishes); err != nil {
		return wishes, err
	}
	var around struct{ Payload, Args json.RawMessage }
	var args []json.RawMessage
	_ = json.Unmarshal(body, &around)
	_ = json.Unmarshal(around.Args, &args)
	for _, inner := range append(args, around.Payload) {
		_ = json.Unmarshal(inner, &wishes)
	}
	return wishes, nil
}

func execute(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	id := r.Header.Get("X-Job-Id")
	body, err := io.ReadAll(r.Body)
	if err != nil {
		log.Printf("job=%q status=400 error=%q", id, err)
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	wishes, err := parse(body)
	if err != nil {
		log.Printf("job=%q status=400 error=%q", id, err)
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if wishes.Die {
		log.Printf("job=%q dying", id)
		os.Exit(1)
	}
	// Written to, page by page: memory that is only asked for does not count.
	used := make([]byte, wishes.MemoryMiB<<20)
	for at := 0; at < len(used); at += 4096 {
		used[at] = 1
	}
	defer runtime.KeepAlive(used)
	select {
	case <-time.After(time.Duration(wishes.DurationMs) * time.Millisecond):
	case <-r.Context().Done():
		log.Printf("job=%q attempt=%s abandoned ms=%d", id, r.Header.Get("X-Job-Attempt"), time.Since(began).Milliseconds())
		return
	}
	status, answer := http.StatusOK, `{"status":"success"}`
	if wishes.Fail {
		status, answer = http.StatusInternalServerError, `{"status":"failure","error_message":"the job asked to fail"}`
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, answer)
	log.Printf("job=%q attempt=%s status=%d ms=%d", id, r.Header.Get("X-Job-Attempt"), status, time.Since(began).Milliseconds())
}

func health(w http.ResponseWriter, _ *http.Request) {
	_, _ = io.WriteString(w, "ok\n")
	log.Print("health status=200")
}

// What was exported, up to a size that no test reaches.
var traces struct {
	sync.Mutex
	lines []byte
}

const (
	mostTraces = 64 << 20
	// A message of gRPC begins with a byte that says whether it is compressed and four with its length.
	frame = 5
)

func export(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil || len(body) < frame || body[0] != 0 {
		log.Printf("export bytes=%d error=%v", len(body), err)
		http.Error(w, "want one message that is not compressed", http.StatusBadRequest)
		return
	}
	traces.Lock()
	if len(traces.lines) < mostTraces {
		traces.lines = append(base64.StdEncoding.AppendEncode(traces.lines, body[frame:]), '\n')
	}
	traces.Unlock()
	log.Printf("export bytes=%d", len(body))
	w.Header().Set("Content-Type", "application/grpc")
	w.Header().Set("Trailer", "Grpc-Status")
	_, _ = w.Write(make([]byte, frame))
	w.Header().Set("Grpc-Status", "0")
}

func exported(w http.ResponseWriter, _ *http.Request) {
	traces.Lock()
	defer traces.Unlock()
	_, _ = w.Write(traces.lines)
}

func main() {
	log.SetFlags(log.LstdFlags | log.Lmicroseconds)
	port := os.Getenv("PORT")
	if port == "" {
		port = "3000"
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /jobs/execute", execute)
	mux.HandleFunc("GET /health", health)
	mux.HandleFunc("POST /opentelemetry.proto.collector.trace.v1.TraceService/Export", export)
	mux.HandleFunc("GET /traces", exported)
	// gRPC is HTTP/2, here without encryption.
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Addr: ":" + port, Handler: mux, Protocols: protocols, ReadHeaderTimeout: 10 * time.Second}

	stop, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	finished := make(chan struct{})
	go func() {
		<-stop.Done()
		log.Print("stopping: finishing what runs")
		_ = server.Shutdown(context.Background())
		close(finished)
	}()
	log.Printf("listening on :%s", port)
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		log.Fatalf("app: %v (set PORT to a free one)", err)
	}
	<-finished
}
