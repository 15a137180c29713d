module asynq-bench

go 1.24

require github.com/hibiken/asynq v0.26.0
