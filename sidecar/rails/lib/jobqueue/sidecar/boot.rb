# frozen_string_literal: true

# To be required before the application: it makes this process a Sidekiq server in the application's eyes, so that
# `Sidekiq.configure_server` blocks run and their middleware, handlers and hooks are there. Nothing fetches here.
#
# Rails comes first: Sidekiq and we have parts (reloader, ActiveJob, logs) that are there only when Rails is.
require "logger"
require "rails"
require "sidekiq/cli"
require "sidekiq/rails"
require "sidekiq/job_retry"
require "sidekiq/job_logger"
require "jobqueue/sidecar"
require "jobqueue/sidecar/railtie"
require "jobqueue/sidecar/sidekiq_runtime"

Jobqueue::Sidecar.booted!
Jobqueue::Sidecar::SidekiqRuntime.new.concurrency = Jobqueue::Sidecar.settings.concurrency
