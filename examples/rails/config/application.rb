# frozen_string_literal: true

require_relative "boot"
require "rails"
require "action_controller/railtie"
require "active_job/railtie"
require "sidekiq"
require "sidekiq/web"

Bundler.require(*Rails.groups)

module Example
  class Application < Rails::Application
    config.load_defaults 6.1
    $LOAD_PATH.unshift(root.join("lib").to_s)
    config.active_job.queue_adapter = :sidekiq
    config.api_only = true
    # Sidekiq Web keeps its CSRF token in a session.
    config.session_store :cookie_store, key: "_example"
    config.middleware.use ActionDispatch::Cookies
    config.middleware.use config.session_store, config.session_options
    config.eager_load = Rails.env.production?
    config.log_level = :info
    config.logger = ActiveSupport::Logger.new($stdout) if ENV["RAILS_LOG_TO_STDOUT"]
    # An example; an application of yours has its own secret.
    config.secret_key_base = ENV.fetch("SECRET_KEY_BASE", "example" * 10)
    config.hosts.clear
  end
end
