// Contestant asynq: see src/peers.rs for what the three commands have to do.
package main

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hibiken/asynq"
)

// Only errors are worth a line: a log line a job would be part of the figure.
type errorsOnly struct{}

func (errorsOnly) Debug(...interface{})      {}
func (errorsOnly) Info(...interface{})       {}
func (errorsOnly) Warn(...interface{})       {}
func (errorsOnly) Error(args ...interface{}) { log.Println(args...) }
func (errorsOnly) Fatal(args ...interface{}) { log.Fatalln(args...) }

// 200 bytes, distinct by their first characters, the number of the task.
func payload(number uint32) []byte {
	raw := make([]byte, 100)
	if _, err := rand.Read(raw); err != nil {
		log.Fatal(err)
	}
	binary.BigEndian.PutUint32(raw, number)
	return []byte(hex.EncodeToString(raw))
}

func number(task *asynq.Task) uint32 {
	raw, err := hex.DecodeString(string(task.Payload()[:8]))
	if err != nil {
		log.Fatal(err)
	}
	return binary.BigEndian.Uint32(raw)
}

func argument(at int) int {
	value, err := strconv.Atoi(os.Args[at])
	if err != nil {
		log.Fatal(err)
	}
	return value
}

func enqueue(redis asynq.RedisClientOpt, count int) {
	client := asynq.NewClient(redis)
	defer client.Close()
	var next atomic.Int64
	var producers sync.WaitGroup
	for range 16 {
		producers.Add(1)
		go func() {
			defer producers.Done()
			for at := next.Add(1); at <= int64(count); at = next.Add(1) {
				if _, err := client.Enqueue(asynq.NewTask("noop", payload(uint32(at)))); err != nil {
					log.Fatal(err)
				}
			}
		}()
	}
	producers.Wait()
}

func server(redis asynq.RedisClientOpt, concurrency int, handle func(*asynq.Task)) *asynq.Server {
	server := asynq.NewServer(redis, asynq.Config{Concurrency: concurrency, Logger: errorsOnly{}})
	err := server.Start(asynq.HandlerFunc(func(_ context.Context, task *asynq.Task) error {
		handle(task)
		return nil
	}))
	if err != nil {
		log.Fatal(err)
	}
	return server
}

func work(redis asynq.RedisClientOpt, concurrency int) {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	running := server(redis, concurrency, func(*asynq.Task) {})
	<-stop
	running.Shutdown()
}

func pickup(redis asynq.RedisClientOpt, rate, count int) {
	pushed, started := make([]time.Time, count), make([]time.Time, count)
	var done sync.WaitGroup
	done.Add(count)
	running := server(redis, 10, func(task *asynq.Task) {
		started[number(task)] = time.Now()
		done.Done()
	})
	client := asynq.NewClient(redis)
	time.Sleep(2 * time.Second)
	start := time.Now()
	for at := range count {
		task := asynq.NewTask("noop", payload(uint32(at)))
		time.Sleep(time.Until(start.Add(time.Duration(at) * time.Second / time.Duration(rate))))
		pushed[at] = time.Now()
		// In the background: an open loop does not wait.
		go func() {
			if _, err := client.Enqueue(task); err != nil {
				log.Fatal(err)
			}
		}()
	}
	done.Wait()
	running.Shutdown()
	for at := range count {
		fmt.Println(started[at].Sub(pushed[at]).Microseconds())
	}
}

func main() {
	redis := asynq.RedisClientOpt{Addr: os.Args[2]}
	switch os.Args[1] {
	case "enqueue":
		enqueue(redis, argument(3))
	case "work":
		work(redis, argument(3))
	case "pickup":
		pickup(redis, argument(3), argument(4))
	}
}
