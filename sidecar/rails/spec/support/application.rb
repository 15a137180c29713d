# frozen_string_literal: true

require "active_job/railtie"

# A Rails application as small as they get, for the specs that need no process of its own.
class SpecApplication < Rails::Application
  config.load_defaults 6.1
  config.eager_load = false
  config.active_job.queue_adapter = :sidekiq
  config.secret_key_base = "spec" * 10
  config.logger = Logger.new(IO::NULL)
end
