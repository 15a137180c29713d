# frozen_string_literal: true

# To be required before the application: it makes this process a Sidekiq server in the application's eyes, so that
# `Sidekiq.configure_server` blocks run and their middleware, handlers and hooks are there. Nothing fetches here.
require "sidekiq/cli"
require "sidekiq/job_retry"
require "sidekiq/job_logger"
require "jobqueue/sidecar"
require "jobqueue/sidecar/sidekiq_runtime"

Jobqueue::Sidecar.booted!
Jobqueue::Sidecar::SidekiqRuntime.new.concurrency = Jobqueue::Sidecar.settings.concurrency
