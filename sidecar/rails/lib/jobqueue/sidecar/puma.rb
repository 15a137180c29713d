# frozen_string_literal: true

# Puma's configuration for the sidecar: one process, a thread for each job and two for /health and refusals.
require "json"
require "time"
require "jobqueue/sidecar"

settings = Jobqueue::Sidecar.settings

bind settings.bind
threads settings.threads, settings.threads
# Slots are counted in one process; for more of them run more pods.
workers 0
rackup File.expand_path("config.ru", __dir__)
environment ENV.fetch("RAILS_ENV", "development")
# Longer than the worker keeps an idle connection (15 s), so that it is never us who close one just as it is used.
persistent_timeout 30
# The plugin interrupts jobs at the stop timeout; Puma itself comes later, for whatever is left.
force_shutdown_after settings.stop_timeout + 5
# Puma's own lines, in the same form as the others.
if settings.log_format == "json"
  log_formatter { |text| JSON.generate(ts: Time.now.utc.iso8601(3), pid: Process.pid, lvl: "INFO", msg: text) }
end
# Since Puma 6: what is too large is not even read.
http_content_length_limit settings.max_body_bytes if respond_to?(:http_content_length_limit)
# An error of ours is told to nobody but the log.
lowlevel_error_handler do |error|
  Sidekiq.logger.error("Could not answer a request: #{error.class.name}")
  [500, { "content-type" => "application/json" }, ['{"status":"error","result":"internal error"}']]
end
plugin :jobqueue
